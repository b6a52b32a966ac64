"""What speculation gives at so many requests at once: tokens a step over what the step costs.

The cost is measured on one machine for one k. On another card its concurrency axis is stretched by the ratio
of tokens at which arithmetic takes over from memory; for another k the extra cost goes with k. Both are
estimates and are said to be.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from checks.advise.data import Curve, Data
from checks.bench.draft_length import LONGEST, expected_tokens
from inventory.hardware import Card, card_named

__all__ = ["MARGIN", "Estimate", "cost_at", "estimate", "interpolated", "last_paying", "ridge"]

#: Below this gain speculation is called not worth it: estimates are no better.
MARGIN = 1.05


@dataclass(frozen=True)
class Estimate:
    """``off_above``: the last concurrency at which it pays; None when it pays as far as the curve reaches.

    ``needed``: tokens a step at which drafts begin to pay at the asked concurrency. ``reach``: the last
    concurrency that the curve tells of; beyond it the gain is not known, and ``gain`` is the one there.
    """

    k: int
    gain: float
    tokens: float
    needed: float
    off_above: int | None
    reach: int
    beyond: bool


def ridge(card: Card, tflops: float, bits: float) -> float:
    """Tokens a step at which a dense layer's arithmetic takes as long as reading its weights."""
    return tflops * 1e12 * (bits / 8) / (2 * card.memory_bandwidth_gbs * 1e9)


def interpolated(points: Sequence[tuple[int, float]], n: float) -> float:
    """Between neighbours on a doubling axis; outside the nearest end."""
    if n <= points[0][0]:
        return points[0][1]
    for (a, low), (b, high) in pairwise(points):
        if n <= b:
            return low + (high - low) * math.log2(n / a) / math.log2(b / a)
    return points[-1][1]


def stretch(curve: Curve, card: Card, bits: float, data: Data) -> float:
    """Requests on the curve's machine that load it as one does on this card."""
    tflops = data.cards.bf16_tflops
    measured = card_named(curve.card)
    assert measured is not None
    return ridge(measured, tflops[measured.name], 16) / ridge(card, tflops[card.name], bits)


def cost_at(curve: Curve, n: float, k: int, draft_share: float = 0.0) -> float:
    """A step with k drafts in steps without. ``draft_share``: a draft step's own share, where it is known."""
    extra = (interpolated(curve.costs, n) - 1) / curve.num_speculative_tokens
    return 1 + k * (max(extra, 0.0) + draft_share)


def estimate(
    curve: Curve, per_position: Sequence[float], users: int, factor: float, draft_share: float = 0.0
) -> Estimate:
    """The best k for ``users`` at once, the smaller one of two within 1 %."""

    def gain(k: int, n: int) -> float:
        return expected_tokens(per_position, k) / cost_at(curve, n * factor, k, draft_share)

    reach = int(curve.speculative[-1][0] / factor)
    gains = {k: gain(k, min(users, reach)) for k in range(1, LONGEST + 1)}
    k = min(k for k, g in gains.items() if g >= max(gains.values()) * 0.99)
    return Estimate(
        k=k,
        gain=gains[k],
        tokens=expected_tokens(per_position, k),
        needed=cost_at(curve, users * factor, k, draft_share),
        off_above=last_paying(lambda n: gain(k, n), reach),
        reach=reach,
        beyond=users > reach,
    )


def last_paying(gain: Callable[[int], float], reach: int) -> int | None:
    """The last concurrency with a gain of at least MARGIN, 0 where there is none; None when all have it."""
    ended = next((n for n in range(1, reach + 1) if gain(n) < MARGIN), None)
    return None if ended is None else ended - 1
