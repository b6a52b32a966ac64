"""`invoke report`: what status, doctor, drift and planner say of live hosts, as page and tree."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from checks.doctor.report import report_json
from checks.facts import HostFacts
from checks.planner import plan
from checks.planner.deployment import gpus_of, scenario_of
from checks.report import Collected, assemble, collect, render
from inventory.errors import EyasError, HostUnreachable, UsageError
from inventory.model import Host
from provision.bench.store import benches
from provision.diagnosis import Connect, diagnose_host
from provision.drift import differences_of, outliers, sentence, traits
from provision.fleet import each_host
from provision.gather import served_now
from provision.localfile import replace_text
from provision.looking import Seen
from provision.observe import probe
from provision.replan import Config, deployment_of, model_config
from provision.review import history_of
from provision.run import Flags, connector
from provision.sources import Sources
from provision.status import idle_row, row_of

__all__ = ["gather_live", "plan_of", "report"]


#: Looks of a host's own history that a chart can show.
_LOOKS = 52


@dataclass(frozen=True)
class Found:
    """One host's answers; ``lost`` when it gave none."""

    host: Host
    rows: tuple[dict[str, Any], ...] = ()
    facts: Mapping[str, Any] | None = None
    diagnosis: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    drift: Mapping[str, Any] | None = None
    reviews: Sequence[Mapping[str, Any]] = ()
    lost: Mapping[str, str] | None = None


def report(
    hosts: Sequence[Host],
    flags: Flags,
    *,
    folder: str = "",
    out: str,
    scope: str = "",
    connect: Connect | None = None,
) -> int:
    """Write the page to ``out`` (atomically) and print the tree with ``flags.as_json``.

    ``folder`` holds saved documents, which join what the live ``hosts`` say. Exit 3 after writing when a host
    could not be reached, else 4 when an error was found or a release does not serve, else 0.
    """
    _refuse_place(Path(out))
    found = collect(Path(folder)) if folder else Collected()
    if hosts:
        gather_live(found, hosts, flags, connect)
    tree = assemble(found, made_at=_now(), version=_version(), scope=scope or Path(folder).name)
    replace_text(Path(out), render(tree), hint="--out report.html, in a folder that you may write to")
    if flags.as_json:
        print(json.dumps(tree, ensure_ascii=False))
    else:
        print(f"wrote {out}")
    for lost in tree["unreachable"]:
        sys.stderr.write(f"{lost['host']}: {lost['error']}\n")
    return _code(tree["summary"])


def _refuse_place(out: Path) -> None:
    """Before anybody is asked."""
    if out.is_dir() or not out.parent.is_dir():
        why = "is a folder" if out.is_dir() else "is in no folder that exists"
        raise UsageError(f"--out {out} {why}", hint="--out report.html")


def _code(summary: Mapping[str, Any]) -> int:
    if summary["unreachable"]:
        return HostUnreachable.exit_code
    return 4 if summary["errors"] or summary["not_serving"] else 0


def gather_live(
    found: Collected, hosts: Sequence[Host], flags: Flags, connect: Connect | None = None
) -> None:
    """Ask every host, bounded by ``flags.forks``; one that gives no answer is in the report as such."""
    opened: Connect = connect or connector(flags)
    told = each_host(hosts, lambda h: _look(h, opened), forks=flags.forks)
    for one in told:
        found.rows += one.rows
        found.facts += [one.facts] if one.facts else []
        found.plans += [one.plan] if one.plan else []
        found.diagnoses += [one.diagnosis] if one.diagnosis else []
        found.reviews += [{"host": one.host.name, "reviews": one.reviews}] if one.reviews else []
        found.unreachable += [one.lost] if one.lost else []
    found.drifts += _odd([one.drift for one in told if one.drift])
    kept = [b for b in benches() if b.host in {h.name for h in hosts}]
    found.benches += kept
    found.looked |= {"status", "doctor", "drift", "facts", "review", *(["bench"] if kept else [])}
    found.sources.append(
        {"name": f"{len(hosts)} hosts, asked now", "kind": "status, doctor, drift, facts, plan, review"}
    )


def _look(host: Host, connect: Connect) -> Found:
    """Status and facts over one connection, then the doctor's own look. Never raises for a host's trouble."""
    try:
        with connect(host) as shell:
            facts, served, reviews = probe(shell), served_now(shell), history_of(shell, _LOOKS)
    except EyasError as e:
        return Found(host, lost={"host": host.name, "error": e.message, "hint": e.hint})
    rows = [row_of(host.name, name, facts, told) for name, told in served.items()]
    differences, unseen = differences_of(served)
    drift = {"host": host.name, "differences": differences, "unseen": unseen, "traits": traits(facts, served)}
    found = Found(
        host, tuple(rows or [idle_row(host.name)]), json.loads(facts.to_json()), drift=drift, reviews=reviews
    )
    diagnosed = diagnose_host(host, None, connect, Sources())
    document = report_json(diagnosed.report)
    seen = diagnosed.sight.seen if diagnosed.sight else ()
    return replace(found, diagnosis=document, plan=plan_of(host, facts, seen))


def _odd(drifts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same with the sentence that says how a host differs from the others."""
    odd = outliers({d["host"]: d["traits"] for d in drifts})
    return [{**d, "outlier": sentence(d["host"], odd[d["host"]]) if d["host"] in odd else ""} for d in drifts]


def plan_of(host: Host, facts: HostFacts, seen: Sequence[Seen]) -> dict[str, Any] | None:
    """What the served release takes by the planner, on this host's cards; why not, where nobody can tell."""
    served = [s for s in seen if s.release]
    if not served:
        return None
    if len(served) > 1:
        return {"host": host.name, "why": f"{len(served)} services share the cards"}
    try:
        made = plan(scenario_of(deployment_of(served[0].release), *_configs(served[0]), gpus_of(facts)))
    except (EyasError, ValueError, KeyError) as e:
        reason = e.message if isinstance(e, EyasError) else f"its release does not read: {e}"
        return {"host": host.name, "why": reason}
    return made.to_json() | {"host": host.name}


def _configs(seen: Seen) -> tuple[Config, Config | None]:
    """Raises ValueError where the target's config.json could not be read on the host."""
    configs = seen.raw.get("configs") or {}
    target = model_config(configs.get("target"))
    if target is None:
        raise ValueError("the target's config.json could not be read")
    return target, model_config(configs.get("draft"))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _version() -> str:
    try:
        return version("eyas")
    except PackageNotFoundError:
        return "from a checkout"
