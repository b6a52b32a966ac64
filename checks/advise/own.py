"""Own benches: a measured gain for the same model, cards and split; else a head's acceptance."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from checks.advise.gain import MARGIN, interpolated
from checks.advise.question import Question
from checks.bench.model import BenchResult, Cell, StrategyRun
from checks.report.saved import collect
from inventory.hardware import find_card
from inventory.pairs import load_pairs

__all__ = ["Acceptance", "Measured", "acceptance_of", "load_benches", "measured_of"]


@dataclass(frozen=True)
class Measured:
    """A strategy that was measured on this very kind of machine."""

    run: StrategyRun
    gain: float
    off_above: int | None
    by: str


@dataclass(frozen=True)
class Acceptance:
    per_position: tuple[float, ...]
    by: str


def load_benches(folder: str) -> list[BenchResult]:
    """Raises UsageError where the folder has no document at all."""
    return collect(Path(folder)).benches if folder else []


def measured_of(q: Question, benches: Iterable[BenchResult], tensor_parallel: int) -> list[Measured]:
    """The strategies of the newest matching bench that also measured none, best first."""
    for b in sorted(benches, key=lambda b: b.taken_at, reverse=True):
        plain = b.run("none")
        if plain is None or not plain.cells or not _same_machine(q, b, tensor_parallel):
            continue
        found = [m for s in b.strategies if s is not plain and (m := _measured(q, b, s, plain))]
        if found:
            return sorted(found, key=lambda m: -m.gain)
    return []


def _same_model(q: Question, b: BenchResult) -> bool:
    return load_pairs().same_model(b.target.partition("@")[0], q.model.label)


def _same_machine(q: Question, b: BenchResult, tensor_parallel: int) -> bool:
    cards = {c.name if (c := find_card(name)) else name for name in b.gpus}
    return _same_model(q, b) and cards == {q.card.name} and b.tensor_parallel == tensor_parallel


def _measured(q: Question, b: BenchResult, s: StrategyRun, plain: StrategyRun) -> Measured | None:
    gains: dict[int, list[float]] = {}
    for cell in _fitting(q, s.cells):
        before = plain.cell(cell.workload, cell.concurrency)
        if before is not None:
            ratio = cell.tokens_per_s_total.median / before.tokens_per_s_total.median
            gains.setdefault(cell.concurrency, []).append(ratio)
    if not gains:
        return None
    points = sorted((n, sum(g) / len(g)) for n, g in gains.items())
    by = f"invoke bench --host {b.host} --compare on {len(b.gpus)}x {q.card.name}, {b.taken_at[:10]}"
    return Measured(s, interpolated(points, q.users), _off_above(points), by)


def _off_above(points: Sequence[tuple[int, float]]) -> int | None:
    """The last measured concurrency before it stopped paying; 0 where it never paid."""
    last = 0
    for n, gain in points:
        if gain < MARGIN:
            return last
        last = n
    return None


def _fitting(q: Question, cells: Sequence[Cell]) -> list[Cell]:
    """Those of the use's workloads, else all."""
    return [c for c in cells if c.workload in q.use.workloads] or list(cells)


def acceptance_of(q: Question, benches: Iterable[BenchResult], method: str, draft: str) -> Acceptance | None:
    """Acceptance by position of this draft (or method without one) for this model, on whatever machine."""
    for b in sorted(benches, key=lambda b: b.taken_at, reverse=True):
        for s in b.strategies if _same_model(q, b) else ():
            if s.strategy != method or s.draft.partition("@")[0].lower() != draft.lower():
                continue
            rows = [c.acceptance.per_position for c in _fitting(q, s.cells) if c.acceptance]
            rows = [r for r in rows if r and len(r) == len(rows[0])]
            if rows:
                mean = tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
                return Acceptance(mean, f"invoke bench --host {b.host}, {b.taken_at[:10]}")
    return None
