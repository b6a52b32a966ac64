"""How many tokens to draft: expected tokens a step over what the step costs, for k = 1 to 8.

Tokens at k come from the acceptance by position that was measured at one k; beyond it they go on falling as
they last did. A step costs the target's plus k times the draft's, both from measured steps. The result is an
estimate until a run with that k was made.
"""

import math
from collections.abc import Mapping, Sequence

from checks.bench.model import Cell, DraftLength, StrategyRun

__all__ = ["LONGEST", "best_length", "expected_tokens", "lengths"]

LONGEST = 8


def expected_tokens(per_position: Sequence[float], k: int) -> float:
    """Tokens a step with k drafted ones: the target's own and each position's chance to be kept."""
    kept = list(per_position[:k])
    while kept and len(kept) < k:
        fall = kept[-1] / kept[-2] if len(kept) > 1 and kept[-2] else kept[-1]
        kept.append(kept[-1] * min(1.0, fall))
    return 1 + sum(kept)


def lengths(run: StrategyRun, plain: StrategyRun) -> list[DraftLength]:
    """What each k would give over all cells that both runs have; empty when positions or steps are unknown.

    One speedup for many cells: the geometric mean of those, each no worse than 1, since speculation is off
    where it does not pay.
    """
    k = run.num_speculative_tokens
    pairs = [(c, p) for c in run.cells if (p := plain.cell(c.workload, c.concurrency)) and _usable(c, p)]
    if not k or not pairs:
        return []
    return [_at(run, pairs, k, n) for n in range(1, LONGEST + 1)]


def _usable(cell: Cell, plain: Cell) -> bool:
    return bool(cell.acceptance and cell.acceptance.per_position and cell.step_ms and plain.step_ms)


def _at(run: StrategyRun, pairs: Sequence[tuple[Cell, Cell]], k: int, n: int) -> DraftLength:
    gains, tokens, steps = [], [], []
    for cell, plain in pairs:
        assert cell.acceptance is not None
        assert cell.step_ms is not None
        assert plain.step_ms is not None
        alone = plain.step_ms.median
        draft = max(0.0, cell.step_ms.median - alone) / k
        tokens.append(expected_tokens(cell.acceptance.per_position, n))
        steps.append(alone + n * draft)
        before = _answer_ms(plain, alone)
        gains.append(max(1.0, before / _answer_ms(cell, steps[-1] / tokens[-1])))
    return DraftLength(
        strategy=run.strategy,
        num_speculative_tokens=n,
        tokens_per_step=tokens[0],
        step_ms=steps[0],
        speedup=math.exp(sum(map(math.log, gains)) / len(gains)),
        measured=n == k,
    )


def _answer_ms(cell: Cell, token_ms: float) -> float:
    """A whole answer, its first token included: that part no draft makes shorter."""
    return cell.ttft_p50_ms.median + (cell.output_tokens - 1) * token_ms


def best_length(found: Sequence[DraftLength], gain: Mapping[int, float] | None = None) -> int | None:
    """The k with the largest speedup, the smaller one of two that are within 1 %; None without any.

    ``gain``: speedups that were measured, by k; they count instead of the estimate.
    """
    if not found:
        return None
    known = {d.num_speculative_tokens: d.speedup for d in found} | dict(gain or {})
    top = max(known.values())
    return min(k for k, s in known.items() if s >= top * 0.99)
