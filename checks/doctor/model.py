"""What goes into a diagnosis and what comes out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.outcome import Finding, Fix, Outcome, Severity

__all__ = ["Candidate", "Inputs", "Replan", "Report"]

#: ``replan(code_slug, known values) -> fixes`` that the planner has checked to fit; better than ours.
Replan = Callable[[str, Mapping[str, Any]], Iterable[Fix]]


@dataclass(frozen=True)
class Inputs:
    """Everything a diagnosis may look at. ``None`` means "nobody could look", never "nothing wrong".

    ``log`` is an iterable of byte blocks (any size, any cut) and is consumed once. ``facts`` is a saved
    probe or a flat JSON object; ``unit`` the text of a unit file; ``metrics`` a Prometheus page or JSON;
    ``kernel`` the kernel log. ``sources`` names the inputs in evidence ("log" -> "journal of vllm.service").
    """

    log: Iterable[bytes] | None = None
    facts: Mapping[str, Any] | None = None
    unit: str | None = None
    metrics: str | None = None
    kernel: Iterable[bytes] | None = None
    engine: str = ""
    engine_version: str = ""
    host: str = ""
    drift: tuple[str, ...] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    replan: Replan | None = None


@dataclass(frozen=True)
class Candidate:
    """A cause a rule believes in. ``strength`` 3 the text names it, 2 text and context, 1 a hint.

    ``line`` orders candidates of equal strength: the earliest cause wins. Causes without a line (facts,
    metrics) have -1. ``values`` feed the fixes of the code. ``past``: only an earlier start had it.
    """

    cause: str
    strength: int
    evidence: tuple[Any, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    line: int = -1
    start: int = -1
    severity: Severity | None = None
    note: str = ""
    past: bool = False


@dataclass(frozen=True)
class Report:
    """Findings (root causes first), what each look came to, and one sentence."""

    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome, ...]
    verdict: str

    @property
    def errors(self) -> bool:
        return any(f.severity is Severity.ERROR for f in self.findings)
