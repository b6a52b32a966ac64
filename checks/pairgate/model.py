"""What is asked of the pair gate and what it answers."""

from dataclasses import dataclass
from typing import Any, Literal

from inventory.model import EngineName

__all__ = ["PairVerdict", "PairWant", "Reason", "Severity", "Verdict"]

Severity = Literal["refuse", "warn"]
Verdict = Literal["ok", "warn", "refuse"]


@dataclass(frozen=True)
class PairWant:
    """How the pair is to be served. None means the engine's default; ``version`` None the newest known."""

    engine: EngineName = "vllm"
    version: str | None = None
    method: str | None = None
    tensor_parallel: int = 1
    draft_tensor_parallel: int | None = None
    pipeline_parallel: int = 1
    max_model_len: int | None = None


@dataclass(frozen=True)
class Reason:
    """One thing that does not fit: ``field`` with the target's and the draft's value, and what follows.

    ``error`` is what the engine itself would print later (empty: it starts and says nothing), ``instead``
    what to use or change.
    """

    slug: str
    field: str
    target: Any
    draft: Any
    why: str
    instead: str
    error: str = ""
    severity: Severity = "refuse"

    @property
    def text(self) -> str:
        later = f' The engine\'s own error would be: "{self.error}".' if self.error else ""
        return f"{self.why}{later} Instead: {self.instead}"

    def to_json(self) -> dict[str, Any]:
        return {
            "slug": self.slug,
            "field": self.field,
            "target": self.target,
            "draft": self.draft,
            "text": self.text,
        }


@dataclass(frozen=True)
class PairVerdict:
    """``reasons`` come worst first; ``alternatives`` name a draft and method that do fit the target.

    ``notes`` are facts that change no verdict, such as a method the engine would guess wrongly.
    """

    verdict: Verdict
    method: str
    reasons: tuple[Reason, ...] = ()
    alternatives: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "verdict": self.verdict,
            "method": self.method,
            "reasons": [r.to_json() for r in self.reasons],
            "alternatives": list(self.alternatives),
            "notes": list(self.notes),
        }
