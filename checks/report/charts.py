"""Where lines, ticks and bars lie in a chart: numbers for the template, which draws them as SVG.

A chart is drawn for the width of a phone and tiled on wide screens, so its text is never scaled small.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["HEIGHT", "WIDTH", "Chart", "Line", "by_concurrency", "nice_top", "over_time", "slices"]

WIDTH, HEIGHT = 260, 168
LEFT, RIGHT, TOP, BOTTOM = 40, 6, 8, 34
#: Shapes tell series apart where colours can't: drawn around (0, 0).
MARKERS = (
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
    "M-3.3 -3.3h6.6v6.6h-6.6z",
    "M0 -4.4L4.2 3.2H-4.2z",
    "M0 -4.7L4.7 0L0 4.7L-4.7 0z",
    "M0 4.4L4.2 -3.2H-4.2z",
    "M-4 -1.3h2.7v-2.7h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7z",
)


@dataclass(frozen=True)
class Line:
    """One series: pieces of a polyline (a gap splits it), its points and the whiskers of their intervals."""

    label: str
    kind: str
    marker: str
    pieces: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    whiskers: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Chart:
    """Ticks are (position, text); ``axis`` names what runs along the bottom."""

    title: str
    axis: str
    unit: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    summary: str = ""
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


def nice_top(value: float) -> float:
    """The next 1, 2, 2.5, 4, 5 or 8 times a power of ten; 1 for what is not above 0."""
    if not value > 0 or math.isinf(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((m * power for m in (1, 2, 2.5, 4, 5, 8, 10) if m * power >= value * 0.9999), 10 * power)


def by_concurrency(title: str, series: Sequence[Any], *, unit: str, share: bool = False) -> Chart | None:
    """Series of [concurrency, median, low, high]; the axis doubles at equal steps. None without a point."""
    numbers = sorted({p[0] for s in series for p in s["points"]})
    if not numbers:
        return None
    xs = {n: _spread_over(math.log2(n), math.log2(numbers[0]), math.log2(numbers[-1])) for n in numbers}
    top = 1.0 if share else nice_top(max(p[3] for s in series for p in s["points"]))
    lines = tuple(
        _line(s["label"], s["strategy"], n, [(xs[p[0]], *p[1:]) for p in s["points"]], top)
        for n, s in enumerate(series)
    )
    ticks = tuple((xs[n], str(n)) for n in _thinned(numbers))
    return Chart(title, "requests at once", unit, lines, ticks, _y_ticks(top, share), _told(series, share))


def over_time(title: str, series: Sequence[Any], key: str, *, unit: str, share: bool = False) -> Chart | None:
    """Series of points with ``at`` (ISO 8601) and a value that may be null: a gap, never a zero.

    None where nothing was measured, or a time does not read.
    """
    times = {p["at"]: _seconds(p["at"]) for s in series for p in s["points"]}
    known = [p[key] for s in series for p in s["points"] if p[key] is not None]
    placed = [t for t in times.values() if t is not None]
    if not known or len(placed) < len(times):
        return None
    first, last = min(placed), max(placed)
    xs = {at: _spread_over(t or 0.0, first, last) for at, t in times.items()}
    top = 1.0 if share else nice_top(max(known))
    lines = tuple(
        _line(s["label"], s["kind"], n, [(xs[p["at"]], *(p[key],) * 3) for p in s["points"]], top)
        for n, s in enumerate(series)
    )
    ends = sorted(times)
    ticks = ((float(LEFT), ends[0][:10]), (float(WIDTH - RIGHT), ends[-1][:10]))
    return Chart(title, "", unit, lines, ticks, _y_ticks(top, share), _moved(series, key, share))


def _moved(series: Sequence[Any], key: str, share: bool) -> str:
    told = []
    for s in series:
        known = [p[key] for p in s["points"] if p[key] is not None]
        if known:
            told.append(f"{s['label']}: from {_value(known[0], share)} to {_value(known[-1], share)}")
    return "; ".join(told)


def slices(segments: Sequence[Any], total: float) -> list[tuple[Any, float, float]]:
    """Each segment with its start and width in thousandths of the bar; more than the total fills it."""
    scale = 1000 / max(total, sum(s["gib"] for s in segments), 1e-9)
    found, at = [], 0.0
    for s in segments:
        width = s["gib"] * scale
        found.append((s, round(at, 1), round(width, 1)))
        at += width
    return found


def _line(label: str, kind: str, n: int, points: Sequence[Any], top: float) -> Line:
    pieces: list[list[str]] = [[]]
    dots, whiskers = [], []
    for x, value, low, high in points:
        if value is None:
            pieces.append([])
            continue
        y = _y(value, top)
        pieces[-1].append(f"{x:g},{y:g}")
        dots.append((x, y))
        if high - low > top / 200:
            whiskers.append((x, _y(low, top), _y(high, top)))
    joined = tuple(" ".join(p) for p in pieces if len(p) > 1)
    return Line(label, kind, MARKERS[n % len(MARKERS)], joined, tuple(dots), tuple(whiskers))


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(max(value / top, 0.0), 1.0), 1)


def _spread_over(value: float, first: float, last: float) -> float:
    share = 0.5 if last <= first else (value - first) / (last - first)
    return round(LEFT + 8 + (WIDTH - LEFT - RIGHT - 16) * share, 1)


def _y_ticks(top: float, share: bool) -> tuple[tuple[float, str], ...]:
    """Quarters or fifths, whichever are round for this top."""
    parts = 5 if f"{top:e}"[0] in "25" and f"{top:e}"[:3] != "2.0" else 4
    return tuple((_y(top * n / parts, top), _value(top * n / parts, share)) for n in range(parts + 1))


def _value(value: float, share: bool) -> str:
    if share:
        return f"{value * 100:.0f} %"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.3g}"


def _thinned(numbers: Sequence[int]) -> list[int]:
    """At most nine labels; the first and the last stay."""
    step = max(1, math.ceil((len(numbers) - 1) / 8))
    return sorted({*numbers[::step], numbers[-1]})


def _told(series: Sequence[Any], share: bool) -> str:
    """The chart in words, for who can't see it."""
    return "; ".join(
        f"{s['label']}: {_value(s['points'][0][1], share)} at {s['points'][0][0]},"
        f" {_value(s['points'][-1][1], share)} at {s['points'][-1][0]}"
        for s in series
    )


def _seconds(at: str) -> float | None:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None
