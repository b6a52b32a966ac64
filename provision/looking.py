"""Everything a diagnosis reads of a live host: probe, journals, unit texts, /health, /metrics, drift."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from checks.doctor.diagnose import diagnose
from checks.doctor.journal import latest_starts
from checks.doctor.model import Inputs
from checks.facts import HostFacts
from checks.outcome import Evidence, Finding, Outcome, Severity
from checks.outcome import look as look_at
from checks.preconditions import Want as HostWant
from checks.preconditions import run_preconditions
from checks.preconditions.fit import floors_of
from checks.probe.pack import payload
from inventory.catalogue import load_catalogue
from inventory.errors import EyasError, HostUnreachable
from inventory.model import Deployment
from provision import layout
from provision.explain import named
from provision.observe import probe
from provision.programs import program
from provision.replan import replanner
from provision.shell import Shell
from provision.sources import Sources

__all__ = ["Drift", "Seen", "Sight", "gather", "host_rules", "look"]

#: Journal lines of one unit and of the kernel: several starts of the most talkative engine.
LINES = 5000
_MARKER = "@eyas-look"
_LOOK_S = 25

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Drift:
    """Titles of what `provision` would change; or why nobody could tell, with its cause if that is known."""

    changes: tuple[str, ...] = ()
    unseen: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Seen:
    """One unit of ours as it was found. A value that could not be read is ``{"missing": why}``."""

    unit: str
    raw: Node
    drift: Drift = Drift()

    @property
    def deployment(self) -> str:
        return self.unit.removeprefix("eyas-").removesuffix(".service")

    @property
    def release(self) -> Node:
        told = self.raw.get("release")
        return told if isinstance(told, Mapping) and "missing" not in told else {}

    @property
    def url(self) -> str:
        return str((self.release.get("endpoint") or {}).get("url") or "")


@dataclass(frozen=True)
class Sight:
    """One host as it was found. ``blind``: why nothing but the probe could be read.

    ``drift``: of the deployment that is meant, whether or not it has a unit here.
    """

    facts: HostFacts
    seen: tuple[Seen, ...] = ()
    drift: Drift = Drift()
    kernel: Any = field(default_factory=dict)
    blind: str = ""


def look(shell: Shell, deployment: Deployment | None, sources: Sources, *, only: bool = False) -> Sight:
    """Probe and journals side by side, over one connection. Raises HostUnreachable when it can't look.

    ``deployment``: what the host should serve, for the drift; ``only`` leaves other units of ours out.
    """
    names = [deployment.name] if deployment else []
    unit = f"{layout.unit_name(deployment.name)}.service" if deployment and only else ""
    with ThreadPoolExecutor(max_workers=2) as pool:
        read = pool.submit(_read, shell, [unit] if unit else [])
        payload()  # packed before that thread competes for the interpreter
        ready = pool.submit(_get_ready, drift=bool(deployment))
        facts = probe(shell, names)
        try:
            told, blind = read.result(), ""
        except EyasError as e:
            told, blind = {"units": {}}, e.message
        ready.result()
    drift = Drift(unseen="no deployment is named")
    if deployment:
        from provision.pending import drift_of  # noqa: PLC0415 - see there

        drift = drift_of(shell.host, deployment, facts, sources)
    other = Drift(unseen="another deployment is meant") if names else drift
    ours = {f"{layout.unit_name(name)}.service" for name in names}
    seen = tuple(Seen(name, raw, drift if name in ours else other) for name, raw in told["units"].items())
    return Sight(facts, seen, drift, told.get("kernel"), blind)


def _get_ready(*, drift: bool) -> None:
    """While the host answers: what a process's first diagnosis loads and compiles."""
    diagnose(Inputs(log=[b"\n"], metrics="up 1"))
    load_catalogue()
    if drift:
        import_module("provision.pending")


def _read(shell: Shell, units: list[str]) -> dict[str, Any]:
    argv = ("python3", "-I", "-", json.dumps({"lines": LINES, "units": units}))
    got = shell.run(argv, timeout=_LOOK_S, stdin=program("look.py"), check=False)
    _, marker, rest = got.stdout.rpartition(f"\n{_MARKER} ")
    length, _, body = rest.partition("\n")
    try:
        found: dict[str, Any] = json.loads(body[: int(length)])
    except ValueError as e:
        why = got.tail(2) if not marker else f"the answer was cut: {e}"
        raise HostUnreachable(f"journals could not be read: {why}", host=shell.host.name) from e
    return found


# ---- as a diagnosis takes it


def gather(sight: Sight, seen: Seen | None) -> Inputs:
    """The doctor's inputs for one unit; without one, the host's facts and kernel log alone."""
    facts = json.loads(sight.facts.to_json())
    kernel, no_kernel = _text(sight.kernel)
    unseen = {"kernel": no_kernel} if no_kernel else {}
    base = Inputs(
        facts=facts, kernel=[kernel.encode()] if kernel else None, host=sight.facts.host, unseen=unseen
    )
    why = sight.blind or "no eyas service on this host"
    if seen is None:
        gaps = {**dict.fromkeys(("log", "unit", "metrics"), why), "drift": sight.drift.unseen}
        return replace(base, unseen={**unseen, **gaps})
    log, no_log = _text(seen.raw.get("journal"))
    unit, no_unit = _text(seen.raw.get("unit"))
    metrics, no_metrics = _page(seen)
    gaps = {"log": no_log, "unit": no_unit, "metrics": no_metrics, "drift": seen.drift.unseen}
    return replace(
        base,
        log=[latest_starts(log, seen.unit).encode()] if log else None,
        unit=unit or None,
        metrics=metrics or None,
        engine=str(seen.release.get("engine") or ""),
        engine_version=str(seen.release.get("engine_version") or ""),
        drift=seen.drift.changes,
        unseen={**unseen, **{k: v for k, v in gaps.items() if v}},
        sources={"log": f"journal of {seen.unit}", "unit": seen.unit, "metrics": f"{seen.url}/metrics"},
        replan=replanner(seen.release, seen.raw.get("configs") or {}, sight.facts),
    )


def _text(node: Any) -> tuple[str, str]:
    """The text, or why there is none."""
    if isinstance(node, str):
        return node, "" if node else "it is empty"
    return "", str(node["missing"]) if isinstance(node, Mapping) and "missing" in node else "not looked at"


def _page(seen: Seen) -> tuple[str, str]:
    """/metrics of a running engine; the reason when it does not serve."""
    page = seen.raw.get("metrics")
    if not isinstance(page, Mapping):
        return "", "no release says where the endpoint is"
    if "missing" in page:
        return "", str(page["missing"])
    if page.get("status") != 200:
        return "", f"{seen.url}/metrics answered {page.get('status')}"
    return str(page.get("text") or ""), "" if page.get("text") else "the page is empty"


def host_rules(sight: Sight, seen: Seen | None) -> list[Outcome]:
    """The rules that also stand before every provision, asked for what this unit serves."""
    found = run_preconditions(sight.facts, _host_want(seen) if seen else HostWant())
    return [*found, look_at("deployment", lambda: _deployable(sight, seen))]


def _deployable(sight: Sight, seen: Seen | None) -> Iterator[Finding]:
    """Why the deployment can't be made again: an error, unless its service runs and is only not renewed."""
    drift = seen.drift if seen else sight.drift
    unit = (sight.facts.value("eyas.units", dict) or {}).get(seen.unit if seen else "") or {}
    severity = Severity.WARNING if unit.get("active") == "active" else Severity.ERROR
    yield from named(
        drift.cause, Evidence("deployment", drift.unseen), severity=severity, host=sight.facts.host
    )


def _host_want(seen: Seen) -> HostWant:
    """As far as the release tells; wheels and weights are there already."""
    settings = seen.release.get("settings")
    if not isinstance(settings, Mapping):
        return HostWant(unit=seen.unit)
    version, engine = str(seen.release.get("engine_version")), str(seen.release.get("engine"))
    try:
        floors = floors_of(load_catalogue().release(engine, version), settings.get("device", "cuda"))
    except EyasError:
        floors = None
    return HostWant(
        device=settings.get("device") or "cuda",
        floors=floors,
        tensor_parallel=settings.get("tensor_parallel") or 1,
        pipeline_parallel=settings.get("pipeline_parallel") or 1,
        nodes=settings.get("nodes") or 1,
        gpu_memory_utilization=settings.get("gpu_memory_utilization") or 0.9,
        address=settings.get("host") or "127.0.0.1",
        port=settings.get("port"),
        unit=seen.unit,
    )
