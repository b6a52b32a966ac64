"""What only a live host shows: our units as systemd holds them, apart from what their journals say."""

from collections.abc import Callable, Iterator
from typing import Any

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.outcome import Severity

__all__ = ["RULES"]


def _units(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Our engines' units; the health check's own are left out."""
    units = case.known("eyas.units")
    for name, unit in units.items() if isinstance(units, dict) else ():
        engine = name.endswith(".service") and not name.endswith("-health.service")
        if engine and isinstance(unit, dict) and "missing" not in unit:
            yield name, unit


def _unhealthy(case: Case) -> Iterator[Candidate]:
    """The supervisor's own word, while the unit is still active and /health may say 200."""
    for name, unit in _units(case):
        said = str(unit.get("status_text") or "")
        if unit.get("active") == "active" and said.startswith("unhealthy for"):
            why = case.fact(f"eyas.units.{name}.status_text", said)
            dead = "answered 503" in said
            yield Candidate("worker-died" if dead else "engine-hung", 2, (why,))


def _stopped(case: Case) -> Iterator[Candidate]:
    """Not running. Weak, so that a cause the journal names comes first; one that is off on purpose warns."""
    for name, unit in _units(case):
        state = unit.get("active")
        if state not in {"failed", "inactive"} or unit.get("load") == "not-found":
            continue
        why = case.fact(f"eyas.units.{name}", f"{state} ({unit.get('result')}), {unit.get('enabled')}")
        meant = state == "inactive" and unit.get("enabled") != "enabled"
        yield Candidate("service-not-running", 1, (why,), severity=Severity.WARNING if meant else None)


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {"unhealthy": _unhealthy, "stopped": _stopped}
