"""How sure a measured number is. Speeds are compared by their logarithms: a change is a ratio.

Intervals are Student's at 95 %: few repeats give a wide one, which says "can't tell" by itself.
"""

import math
import statistics
from collections.abc import Sequence

from checks.bench.model import Answer, Spread

__all__ = ["TELLING", "change", "judged", "paired_change", "ratio", "settled", "spread"]

#: What a bench must be able to tell: a change of 5 %.
TELLING = 0.05

#: Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the table the normal's.
_T = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
_NORMAL = 1.96


def _t(freedom: float) -> float:
    """Rounded down to a whole degree of freedom, so that the interval is never too narrow."""
    whole = int(freedom)
    if whole < 1:
        return math.inf
    return _T[whole - 1] if whole <= len(_T) else _NORMAL + 2.4 / whole


def spread(values: Sequence[float]) -> Spread:
    """Median with the interval of the mean logarithm, widened to hold the median. All must be above 0."""
    median = statistics.median(values)
    if len(values) < 2 or min(values) <= 0:
        return Spread(median=median, low=median, high=median, n=len(values))
    logs = [math.log(v) for v in values]
    middle, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = _t(len(logs) - 1) * error
    low, high = math.exp(middle - reach), math.exp(min(700.0, middle + reach))
    return Spread(median=median, low=min(low, median), high=max(high, median), n=len(values))


def settled(found: Spread, telling: float = TELLING) -> bool:
    """Whether the whole interval is no wider than what must be told."""
    return found.relative * 2 <= telling


def ratio(now: Sequence[float], before: Sequence[float]) -> Spread:
    """Now / before of two independent sets (Welch). One value a side: no interval, ``n`` 1."""
    point = statistics.median(now) / statistics.median(before)
    n = min(len(now), len(before))
    if n < 2:
        return Spread(median=point, low=point, high=point, n=n)
    a, b = ([math.log(v) for v in side] for side in (now, before))
    va, vb = (statistics.variance(side) / len(side) for side in (a, b))
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1)) if va + vb else math.inf
    reach = _t(min(freedom, 1000)) * math.sqrt(va + vb)
    middle = statistics.fmean(a) - statistics.fmean(b)
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Spread(median=point, low=min(low, point), high=max(high, point), n=n)


def paired_change(now: Sequence[float], before: Sequence[float]) -> Spread:
    """Now / before where the i-th of both did the same work: what the prompts differ in falls out."""
    if len(now) != len(before):
        raise ValueError(f"{len(now)} values can't be paired with {len(before)}")
    return spread([a / b for a, b in zip(now, before, strict=True)])


def change(found: Spread) -> tuple[float, float | None, float | None]:
    """A ratio as a change: (0.9, ...) is -0.1; no interval where nobody repeated it."""
    if found.n < 2:
        return found.median - 1, None, None
    return found.median - 1, found.low - 1, found.high - 1


def judged(found: Spread, *, worse: float = TELLING) -> Answer:
    """Is the ratio (larger is better) a drop of more than ``worse``? Only an interval on one side tells."""
    if found.n < 2:
        return "can't tell"
    if found.high < 1 - worse:
        return "fail"
    return "pass" if found.low > 1 - worse else "can't tell"
