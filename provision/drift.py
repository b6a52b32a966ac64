"""`invoke drift`: how hosts differ from what they were given, and from each other."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from checks.facts import HostFacts, Known
from checks.nodes.alike import compare, members_of
from inventory.errors import EyasError
from inventory.load import deployment_for
from inventory.model import Deployment, Host
from provision.converge import Options, look, plan_changes
from provision.gather import gather, served_now, tell_lost
from provision.observe import probe
from provision.run import Flags
from provision.shell import Shell
from provision.want import want_for

__all__ = ["differences_of", "drift", "groups_in", "outliers", "sentence", "traits"]

#: What should be equal on the hosts of one fleet: name -> path of the fact.
TRAITS = {
    "driver": "driver.module_version",
    "driver library": "driver.library_version",
    "kernel": "os.kernel",
    "system": "os.pretty",
    "glibc": "os.glibc",
    "python": "python.version",
    "cuda toolkit": "cuda.nvcc_version",
    "fabric manager": "driver.fabric_manager.version",
    "open files limit": "limits.nofile_hard",
    "locked memory limit": "limits.memlock_hard",
    "memory": "memory.total",
}
GPU_TRAITS = ("name", "vbios", "mig", "persistence", "power_limit", "memory_total")


def traits(facts: HostFacts, served: Mapping[str, Any]) -> dict[str, str]:
    """The values that are compared between hosts; what nobody could read is left out, not guessed."""
    found = {}
    for name, path in TRAITS.items():
        fact = facts.get(path)
        if isinstance(fact, Known) and fact.value is not None:
            found[name] = str(fact.value)
    gpus = facts.value("gpus", list)
    if gpus is not None:
        found["cards"] = str(len(gpus))
        for key in GPU_TRAITS:
            values = sorted({str(g[key]) for g in gpus if not isinstance(g.get(key), dict) and key in g})
            if values:
                found[f"card {key.replace('_', ' ')}"] = ", ".join(values)
    for deployment, told in served.items():
        found[f"release of {deployment}"] = str(told.get("release"))
    return found


def outliers(fleet: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, tuple[str, str, int]]]:
    """Host -> trait -> (its value, the majority's, how many have that).

    Nobody is an outlier where no value has more than half of the hosts, or where fewer than three have one.
    """
    found: dict[str, dict[str, tuple[str, str, int]]] = {}
    for trait in dict.fromkeys(t for values in fleet.values() for t in values):
        counts = Counter(values[trait] for values in fleet.values() if trait in values)
        value, count = counts.most_common(1)[0]
        if counts.total() < 3 or count * 2 <= counts.total():
            continue
        for host, values in fleet.items():
            if trait in values and values[trait] != value:
                found.setdefault(host, {})[trait] = (values[trait], value, count)
    return found


def sentence(host: str, differs: Mapping[str, tuple[str, str, int]]) -> str:
    others = max(count for _, _, count in differs.values())
    what = ", ".join(f"{trait} {mine} (others {theirs})" for trait, (mine, theirs, _) in differs.items())
    return f"{host} differs from the other {others} in: {what}"


def drift(hosts: Sequence[Host], deployment: str | None, flags: Flags, *, deep: bool = False) -> int:
    """Exit 8, with --detailed-exitcode, when anything differs; 3 when a host could not be looked at."""
    wanted = {h.name: _wanted(h, deployment) for h in hosts}
    options = Options(check=True)
    answers = gather(hosts, lambda s: _look(s, wanted[s.host.name], options, deep), flags)
    lost, code = tell_lost(answers)
    seen = {h.name: a for h, a in answers if not isinstance(a, EyasError)}
    good = {name: one.told for name, one in seen.items()}
    odd = outliers({name: a["traits"] for name, a in good.items()})
    told = {name: sentence(name, differs) for name, differs in odd.items()}
    groups = groups_in([(one.facts, one.served) for one in seen.values()])
    _show(good, told, groups, lost, flags, options.sources.secrets.mask)
    changed = told or any(a["differences"] or a["pending"] for a in good.values())
    changed = changed or any(g["differences"] for g in groups)
    return code or (8 if changed and flags.detailed_exitcode else 0)


@dataclass(frozen=True)
class _Seen:
    """One host: its facts, what it serves by deployment, and what of that is told."""

    facts: HostFacts
    served: Mapping[str, Any]
    told: dict[str, Any]


def groups_in(hosts: Sequence[tuple[HostFacts, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Hosts that serve as one, compared with each other: {deployment, hosts, differences, unseen}.

    ``hosts``: facts and what is served. A member that is not among them is in ``unseen``.
    """
    ranks: dict[tuple[str, tuple[str, ...]], dict[str, HostFacts]] = {}
    members: dict[tuple[str, tuple[str, ...]], list[Mapping[str, Any]]] = {}
    for facts, served in hosts:
        for name, told in served.items():
            if found := members_of(told.get("group")):
                key = name, tuple(str(m["host"]) for m in found)
                ranks.setdefault(key, {})[facts.host] = facts
                members[key] = found
    out = []
    for (name, names), by in ranks.items():
        order = [by[n] for n in names if n in by]
        differ = compare(order, members[name, names], name) if len(order) > 1 else []
        out.append(
            {
                "deployment": name,
                "hosts": list(names),
                "differences": [f"{f.host}: {f.cause}" for f in differ],
                "unseen": [f"{n}: not among the hosts looked at" for n in names if n not in by],
            }
        )
    return out


def _wanted(host: Host, name: str | None) -> Deployment | None:
    """The deployment to compare with; a host without one is compared with its release and the others.

    So is one of several hosts that serve as one: what the group would be is for `provision --check` to say.
    """
    d = deployment_for(host, name) if name or host.vars.get("eyas_deployment") else None
    return d if d is None or d.nodes == 1 else None


def _look(shell: Shell, d: Deployment | None, options: Options, deep: bool) -> _Seen:
    facts = look(shell, d, options) if d else probe(shell)
    served = served_now(shell, deep=deep)
    differences, unseen = differences_of(served)
    pending: list[str] = []
    moved: list[str] = []
    if d:
        want = want_for(shell.host, d, facts, options.sources, lambda _: None)
        pending = [c.title for c in plan_changes(want, facts, options, lambda _: None)]
        moved = list(want.moved)
    told = {
        "traits": traits(facts, served),
        "differences": differences,
        "unseen": unseen,
        "pending": pending,
        "moved": moved,
        "compared_with_deployment": d is not None,
    }
    return _Seen(facts, served, told)


def differences_of(served: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """How what is served (by deployment) differs from its releases, and what nobody could compare."""
    differences, unseen = [], []
    for name, told in served.items():
        differences += [f"{name}: {k}: {t}" for k, ts in told.get("differences", {}).items() for t in ts]
        unseen += [f"{name}: {k}: {why}" for k, why in told.get("unseen", {}).items()]
        if told.get("error"):
            unseen.append(f"{name}: {told['error']}")
        if told.get("down"):
            differences.append(f"{name}: not serving: {told['down']}")
    return differences, unseen


def _show(
    good: Mapping[str, dict[str, Any]],
    odd: Mapping[str, str],
    groups: list[dict[str, Any]],
    lost: list[dict[str, str]],
    flags: Flags,
    mask: Any,
) -> None:
    if flags.as_json:
        listed = [{"host": name, **a, "outlier": odd.get(name, "")} for name, a in good.items()]
        document = {"schema": 1, "hosts": listed, "groups": groups, "unreachable": lost}
        sys.stdout.write(mask(json.dumps(document)) + "\n")
        return
    out = Console(highlight=False, soft_wrap=True, markup=False)
    for name, a in good.items():
        for text in a["differences"]:
            out.print(f"{name}: {mask(text)}")
        for text in a["pending"]:
            out.print(f"{name}: pending: {mask(text)}")
        for text in a["moved"]:
            out.print(f"{name}: {mask(text)}")
        for text in a["unseen"]:
            out.print(f"{name}: not looked: {mask(text)}")
    for text in odd.values():
        out.print(text)
    for g in groups:
        for kind, text in [*(("", t) for t in g["differences"]), *(("not looked: ", t) for t in g["unseen"])]:
            out.print(f"{g['deployment']} on {', '.join(g['hosts'])}: {kind}{mask(text)}")
    apart = {n for g in groups if g["differences"] for n in g["hosts"]}
    clean = [
        n
        for n, a in good.items()
        if not (a["differences"] or a["pending"] or a["unseen"] or n in odd or n in apart)
    ]
    out.print(f"{len(clean)} of {len(good) + len(lost)} hosts are as they should be")
