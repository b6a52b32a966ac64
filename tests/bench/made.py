"""Rounds, cells and runs as a host would give them, from known speeds."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from checks.bench.cells import Round, make_cell
from checks.bench.model import Cell, Speedup, Spread, StrategyRun
from inventory.model import Method

__all__ = ["a_round", "proof", "run_of", "speedup", "spread_of"]


def a_round(
    step_s: float,
    *,
    concurrency: int = 1,
    tokens: int = 101,
    accepted: Sequence[float] = (),
    noise: float = 0.0,
    seed: int = 0,
) -> Round:
    """All requests with this step; ``accepted`` by position; ``noise``: relative standard deviation."""
    rng = random.Random(seed)
    length = 1 + sum(accepted)
    total = [0.1 + (tokens - 1) * step_s / length * rng.gauss(1, noise) for _ in range(max(2, concurrency))]
    drafts = 1000.0 if accepted else 0.0
    counters = {
        "spec_drafts": drafts,
        "spec_draft_tokens": drafts * len(accepted),
        "spec_accepted_tokens": drafts * sum(accepted),
        "preemptions": 0.0,
    }
    return Round.read(
        {
            "requests": [
                {"ttft_s": 0.1, "total_s": t, "prompt_tokens": 50, "output_tokens": tokens, "text": "x"}
                for t in total
            ],
            "counters": counters if accepted else {"preemptions": 0.0},
            "now": {},
            "positions": [drafts * a for a in accepted],
            "kv_usage_peak": 0.25,
            "gpu": {"missing": "the engine runs on the CPU"},
        }
    )


def cell_of(step_s: float, concurrency: int, accepted: Sequence[float] = ()) -> Cell:
    rounds = [a_round(step_s, concurrency=concurrency, accepted=accepted) for _ in range(3)]
    return make_cell("code", concurrency, rounds)


def run_of(
    strategy: Method, steps: Mapping[int, float], k: int | None = None, accepted: Sequence[float] = ()
) -> StrategyRun:
    """Cells at each concurrency with this step time in seconds."""
    cells = tuple(cell_of(s, c, accepted) for c, s in steps.items())
    return StrategyRun(strategy=strategy, num_speculative_tokens=k, cells=cells)


def spread_of(median: float, reach: float = 0.01, n: int = 5) -> Spread:
    return Spread(median=median, low=median * (1 - reach), high=median * (1 + reach), n=n)


def speedup(label: str, concurrency: int, ratio: float, reach: float = 0.01, n: int = 5) -> Speedup:
    return Speedup(strategy=label, workload="code", concurrency=concurrency, ratio=spread_of(ratio, reach, n))


def proof(speed: float, *, noise: float, seed: int, length: float = 2.9, rounds: int = 3) -> dict[str, Any]:
    """A short bench: five prompts of different speeds, each with this relative noise."""
    rng = random.Random(seed)
    return {
        "samples": [
            {
                "prompt": p,
                "tokens_per_s": speed * (1 + 0.2 * p) * rng.gauss(1, noise),
                "step_tokens": length - 0.1 * p,
            }
            for _ in range(rounds)
            for p in range(5)
        ]
    }
