"""Is what a host serves now as good as what it served before? Pure comparison of two proofs.

Speeds are medians over several requests and are noisy: they are measured again before a host is called red,
and the better of both counts. Acceptance of greedy requests hardly varies and is held tighter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Tolerance", "Verdict", "better_of", "compare"]

#: A first token is never called late for less than this: timer and scheduler noise.
TTFT_FLOOR_MS = 20.0


@dataclass(frozen=True)
class Tolerance:
    """How much worse, in percent of the host's own baseline, is still green."""

    ttft_percent: float = 50
    speed_percent: float = 25
    acceptance_percent: float = 15


@dataclass(frozen=True)
class Verdict:
    """``reasons``: why it is red. ``notes``: what was not compared, and why."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    proof: dict[str, Any] | None = None
    compared: dict[str, Any] = field(default_factory=dict)

    @property
    def green(self) -> bool:
        return not self.reasons

    @property
    def text(self) -> str:
        return "; ".join(self.reasons)


def compare(now: Mapping[str, Any], before: Mapping[str, Any] | None, tolerance: Tolerance) -> Verdict:
    """A number that neither run has is noted, never taken for good."""
    proof = dict(now)
    if not before:
        return Verdict(notes=("no baseline on this host: nothing to compare with",), proof=proof)
    reasons: list[str] = []
    notes: list[str] = []
    rows: list[tuple[str, float | None, float | None, float, bool]] = [
        ("time to first token, ms", *_both(now, before, "ttft_ms"), tolerance.ttft_percent, True),
        ("tokens/s", *_both(now, before, "tokens_per_s"), tolerance.speed_percent, False),
    ]
    if _drafted(now) or _drafted(before):
        rows.append(_acceptance(now, before, tolerance))
    compared = {}
    for name, new, old, percent, smaller_is_better in rows:
        if new is None or old is None or old <= 0:
            notes.append(f"{name} not compared: {'not measured now' if new is None else 'no baseline'}")
            continue
        compared[name] = {"now": new, "before": old, "tolerance_percent": percent}
        if _worse(new, old, percent, smaller_is_better):
            change = (new / old - 1) * 100
            reasons.append(f"{name} {new:g}, was {old:g} ({change:+.0f} %, tolerance {percent:g} %)")
    return Verdict(tuple(reasons), tuple(notes), proof, compared)


def _worse(new: float, old: float, percent: float, smaller_is_better: bool) -> bool:
    if smaller_is_better:
        return new > old * (1 + percent / 100) and new - old > TTFT_FLOOR_MS
    return new < old * (1 - percent / 100)


def _drafted(proof: Mapping[str, Any]) -> bool:
    return bool(proof.get("draft_tokens")) or proof.get("acceptance_length") is not None


def _acceptance(
    now: Mapping[str, Any], before: Mapping[str, Any], tolerance: Tolerance
) -> tuple[str, float | None, float | None, float, bool]:
    """Tokens accepted a draft; with fewer drafted ones than before their share, which then must not fall."""
    if _drafted(before) and not _drafted(now):
        return (
            "tokens accepted a draft (nothing is drafted now)",
            None,
            None,
            tolerance.acceptance_percent,
            False,
        )
    fewer = (_length(now) or 0) < (_length(before) or 0)
    if fewer:
        name, key = "acceptance rate", "acceptance_rate"
        new, old = _number(now, key), _number(before, key)
    else:
        name = "tokens accepted a draft"
        new, old = _accepted(now), _accepted(before)
    return name, new, old, tolerance.acceptance_percent, False


def _length(proof: Mapping[str, Any]) -> float | None:
    """Tokens drafted at a time."""
    drafts, tokens = _number(proof, "drafts"), _number(proof, "draft_tokens")
    return tokens / drafts if drafts and tokens is not None else None


def _accepted(proof: Mapping[str, Any]) -> float | None:
    length = _number(proof, "acceptance_length")
    return None if length is None else round(length - 1, 4)


def _both(now: Mapping[str, Any], before: Mapping[str, Any], key: str) -> tuple[float | None, float | None]:
    return _number(now, key), _number(before, key)


def _number(proof: Mapping[str, Any], key: str) -> float | None:
    value = proof.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def better_of(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The second run with the better of both medians, number by number."""
    best = dict(second)
    for key, choose in (
        ("ttft_ms", min),
        ("tokens_per_s", max),
        ("acceptance_length", max),
        ("acceptance_rate", max),
    ):
        values = [v for v in (_number(first, key), _number(second, key)) if v is not None]
        best[key] = choose(values) if values else second.get(key)
    return {**best, "measured": 2}
