"""What a check can say. "Could not look" (UNKNOWN) is a value of its own and never reads as OK."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Evidence", "Finding", "Fix", "Outcome", "Severity", "Status", "look"]


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Status(StrEnum):
    OK = "ok"
    FINDINGS = "findings"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Evidence:
    """A line someone can check: where it was seen (file, fact path, unit key), which line, the text."""

    source: str
    text: str
    line: int | None = None


@dataclass(frozen=True)
class Fix:
    """One change, its value, the command that makes it (if one does) and the reason."""

    change: str
    value: str = ""
    command: str = ""
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """One cause, named by its stable code (``MEM003``) and public slug (``kv-cache-too-small``)."""

    code: str
    slug: str
    severity: Severity
    title: str
    cause: str
    evidence: tuple[Evidence, ...] = ()
    fix: tuple[Fix, ...] = ()
    confidence: str = "high"
    root: bool = True
    explains: tuple[str, ...] = ()
    host: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one check came to. ``why`` is set for SKIPPED, UNKNOWN and CRASHED."""

    check: str
    status: Status
    findings: tuple[Finding, ...] = ()
    why: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def look(check: str, run: Callable[[], Iterable[Finding]]) -> Outcome:
    """Run one check; a crash becomes a result, so that one broken check never hides the others."""
    try:
        found = tuple(run())
    except Exception as e:  # noqa: BLE001 - any bug of a rule is reported as that rule's outcome
        return Outcome(check, Status.CRASHED, why=f"{type(e).__name__}: {e}")
    return Outcome(check, Status.FINDINGS if found else Status.OK, found)
