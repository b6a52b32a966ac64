"""What planning gives: the terms of a GPU's memory, where a start stops, and the numbers people ask for."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from checks.planner.scenario import Scenario
from checks.planner.units import GIB, gib

__all__ = ["Plan", "Stop", "Term", "Verdict", "band_of"]

Verdict = Literal["fits", "tight", "does-not-fit"]

#: Below this much free memory after start a plan is tight: the estimate's own error could eat it.
_TIGHT = GIB


@dataclass(frozen=True)
class Term:
    """One part of a GPU's memory. ``band`` is its error either way; ``source`` says where it comes from.

    ``budgeted``: inside the engine's budget, so its error moves the KV cache and not the device's use.
    """

    name: str
    nbytes: int
    band: int
    source: str
    measured: bool = False
    budgeted: bool = False


def band_of(terms: Iterable[Term]) -> int:
    """The error of the sum: independent terms, without those that the KV cache makes up for."""
    return int(sum(t.band**2 for t in terms if not t.budgeted) ** 0.5)


@dataclass(frozen=True)
class Stop:
    """Why a start ends: the stage, the public cause, what collides."""

    stage: str
    reason: str
    text: str


@dataclass(frozen=True)
class Plan:
    """Bytes per GPU (every rank alike). Values of a stage that is not reached are None."""

    scenario: Scenario
    terms: tuple[Term, ...]
    weights: int | None
    available_kv: int | None
    kv_tokens: int | None
    concurrency: float | None
    max_len: int | None
    longest: int | None
    device_peak: int | None
    band: int
    stop: Stop | None
    notes: tuple[str, ...] = field(default=())

    @property
    def starts(self) -> bool:
        return self.stop is None

    @property
    def reason(self) -> str | None:
        return self.stop.reason if self.stop else None

    @property
    def free(self) -> int | None:
        """What the device has left after start."""
        if self.device_peak is None:
            return None
        return self.scenario.device_total - self.device_peak - self.scenario.other_used

    @property
    def verdict(self) -> Verdict:
        if self.stop is not None:
            return "does-not-fit"
        spare = self.free or 0
        short = self.concurrency is not None and self.concurrency < 1.05
        return "tight" if spare < max(_TIGHT, self.band) or short else "fits"

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`; the first six keys are the scenario interface."""
        return {
            "schema": 1,
            "model_loading_gib": _gib(self.weights),
            "available_kv_gib": _gib(self.available_kv),
            "kv_tokens": self.kv_tokens,
            "device_peak_gib": _gib(self.device_peak),
            "starts": self.starts,
            "reason": self.reason,
            "verdict": self.verdict,
            "detail": self.stop.text if self.stop else "",
            "stage": self.stop.stage if self.stop else None,
            "name": self.scenario.name,
            "device_total_gib": gib(self.scenario.device_total),
            "free_gib": _gib(self.free),
            "band_gib": gib(self.band),
            "max_model_len": self.max_len,
            "longest_model_len": self.longest,
            "concurrency": None if self.concurrency is None else round(self.concurrency, 2),
            "terms": [
                {
                    "name": t.name,
                    "gib": gib(t.nbytes),
                    "band_gib": gib(t.band),
                    "measured": t.measured,
                    "source": t.source,
                }
                for t in self.terms
            ],
            "notes": list(self.notes),
        }


def _gib(value: int | None) -> float | None:
    return None if value is None else gib(value)
