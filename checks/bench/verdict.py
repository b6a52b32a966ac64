"""The decision: which strategy, how many tokens, and from which concurrency on it should be off."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from checks.bench.model import Speedup, Spread, StrategyRun, Verdict

__all__ = ["by_concurrency", "decide", "gain"]


@dataclass(frozen=True)
class _Reach:
    """Up to which concurrency a strategy pays (0: never), the next measured one, and how sure that is."""

    up_to: int
    beyond: int | None
    certain: bool


def by_concurrency(speedups: Iterable[Speedup], label: str) -> dict[int, Spread]:
    """One strategy's speedup at each concurrency: the geometric mean over the workloads."""
    found: dict[int, list[Spread]] = {}
    for s in speedups:
        if s.strategy == label:
            found.setdefault(s.concurrency, []).append(s.ratio)
    return {c: _mean(found[c]) for c in sorted(found)}


def _mean(of: Sequence[Spread]) -> Spread:
    def middle(values: list[float]) -> float:
        return math.exp(sum(map(math.log, values)) / len(values))

    low, median, high = (middle([getattr(s, name) for s in of]) for name in ("low", "median", "high"))
    return Spread(median=median, low=low, high=high, n=min(s.n for s in of))


def gain(points: Mapping[int, Spread]) -> float:
    """One number for a strategy: the geometric mean where it would be on, 1 where it would be off."""
    up_to = _reach(points).up_to
    kept = [s.median if c <= up_to else 1.0 for c, s in points.items()]
    return math.exp(sum(map(math.log, kept)) / len(kept)) if kept else 1.0


def _reach(points: Mapping[int, Spread]) -> _Reach:
    up_to, beyond = 0, None
    for c in sorted(points):
        if points[c].median <= 1:
            beyond = c
            break
        up_to = c
    deciding = [points[up_to].low > 1] if up_to else []
    deciding += [points[beyond].high < 1] if beyond else []
    repeated = all(points[c].n > 1 for c in (up_to, beyond) if c)
    return _Reach(up_to, beyond, bool(deciding) and all(deciding) and repeated)


def decide(runs: Sequence[StrategyRun], speedups: Sequence[Speedup]) -> Verdict | None:
    """None without a run that could be compared. A tie goes to the simpler one, which was given first."""
    tried = [(r, points) for r in runs if (points := by_concurrency(speedups, r.label))]
    if not tried:
        return None
    best, points = max(tried, key=lambda rp: round(gain(rp[1]), 3))
    reach = _reach(points)
    if not reach.up_to:
        return _none(best, points, reach)
    off = reach.up_to if reach.beyond else None
    return Verdict(
        strategy=best.strategy,
        num_speculative_tokens=best.num_speculative_tokens,
        off_above=off,
        certain=reach.certain,
        text=_text(best, points, reach),
    )


def _none(best: StrategyRun, points: Mapping[int, Spread], reach: _Reach) -> Verdict:
    at, ratio = next(iter(points.items()))
    told = f"no speculation: even {best.label} gives {ratio.median:.2f} times the output at {at} at once"
    return Verdict(strategy="none", certain=reach.certain, text=told + _doubt(reach, points))


def _text(best: StrategyRun, points: Mapping[int, Spread], reach: _Reach) -> str:
    first = min(points)
    k = best.num_speculative_tokens
    told = f"{best.strategy}" + (f" with {k} draft token{'s' if k > 1 else ''}" if k else "")
    told += f": {points[first].median:.2f} times the output at {first} at once"
    if reach.up_to != first:
        told += f", {points[reach.up_to].median:.2f} at {reach.up_to}"
    if reach.beyond:
        told += f"; off above {reach.up_to} ({points[reach.beyond].median:.2f} at {reach.beyond})"
    else:
        told += "; it pays at every concurrency that was measured"
    return told + _doubt(reach, points)


def _doubt(reach: _Reach, points: Mapping[int, Spread]) -> str:
    if reach.certain:
        return ""
    at = [c for c in (reach.up_to, reach.beyond) if c and points[c].low <= 1 <= points[c].high]
    if at:
        return f"; not certain: at {' and '.join(map(str, at))} the interval holds 1"
    return "; not certain: it was measured once"
