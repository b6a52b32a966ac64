"""From what the host saw in each round to one cell: medians, their spread, acceptance, what is missing."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.bench.model import Acceptance, Cell
from checks.bench.statistics import settled, spread

__all__ = ["Round", "acceptance", "counted", "enough", "make_cell"]

#: Repeats of a cell: at least, and at most when the interval stays too wide.
LEAST, MOST = 3, 10
_COUNTERS = ("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens")


@dataclass(frozen=True)
class Round:
    """One round's answer of the host's program (systemd/bench.py), read once. Times in seconds."""

    ttft: tuple[float, ...]
    total: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    texts: tuple[str, ...]
    counters: Mapping[str, float | None]
    averages: Mapping[str, float | None]
    positions: tuple[float, ...]
    kv_usage_peak: float | None
    gpu: Mapping[str, Any]

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Round":
        asked = told["requests"]
        return cls(
            tuple(r["ttft_s"] for r in asked),
            tuple(r["total_s"] for r in asked),
            tuple(r["prompt_tokens"] for r in asked),
            tuple(r["output_tokens"] for r in asked),
            tuple(r["text"] for r in asked),
            told["counters"],
            told["now"],
            tuple(told["positions"]),
            told["kv_usage_peak"],
            told["gpu"],
        )

    def tokens_per_s(self, concurrency: int) -> float:
        """All streams together. In a closed loop this is requests in flight over time in the system."""
        return concurrency * statistics.fmean(self.output_tokens) / statistics.fmean(self.total)

    def decode_s(self) -> list[float]:
        """Seconds for each token after the first, by request; requests of one token have none."""
        rows = zip(self.ttft, self.total, self.output_tokens, strict=True)
        return [(total - ttft) / (n - 1) for ttft, total, n in rows if n > 1 and total > ttft]


def enough(rounds: Sequence[Round], concurrency: int, most: int = MOST) -> bool:
    """Whether more repeats would tell more: the interval is narrow enough, or it never gets so."""
    if len(rounds) < min(LEAST, most):
        return False
    return len(rounds) >= most or settled(spread([r.tokens_per_s(concurrency) for r in rounds]))


def make_cell(workload: str, concurrency: int, rounds: Sequence[Round]) -> Cell:
    accepted = acceptance(rounds)
    missing = {} if accepted else {"acceptance": "nothing was drafted"}
    decode = [r.decode_s() for r in rounds]
    itl = spread([1000 * statistics.median(d) for d in decode]) if all(decode) else None
    total = spread([r.tokens_per_s(concurrency) for r in rounds])
    if itl is None:
        missing["itl_ms"] = "a request gave one token or none after the first"
    memory, power = _cards(rounds, missing)
    return Cell(
        workload=workload,
        concurrency=concurrency,
        repeats=len(rounds),
        requests=sum(len(r.total) for r in rounds),
        prompt_tokens=statistics.fmean(n for r in rounds for n in r.prompt_tokens),
        output_tokens=statistics.fmean(n for r in rounds for n in r.output_tokens),
        ttft_p50_ms=spread([1000 * statistics.median(r.ttft) for r in rounds]),
        ttft_p95_ms=spread([1000 * _p95(r.ttft) for r in rounds]),
        itl_ms=itl,
        step_ms=spread([1000 * _step_s(r) for r in rounds]) if itl else None,
        tokens_per_s_request=spread([1 / statistics.median(d) for d in decode]) if itl else None,
        tokens_per_s_total=total,
        settled=settled(total),
        acceptance=accepted,
        kv_usage_peak=_peak([r.kv_usage_peak for r in rounds], "kv_usage_peak", missing),
        preemptions=_preemptions(rounds, missing),
        gpu_memory_mib=memory,
        gpu_power_w=power,
        missing=missing,
    )


def _step_s(r: Round) -> float:
    """Time between two steps of the engine: a step gives 1 + accepted tokens a request."""
    accepted = acceptance([r])
    return statistics.fmean(r.decode_s()) * (accepted.mean_length if accepted else 1.0)


def _p95(values: Sequence[float]) -> float:
    return max(values) if len(values) < 20 else statistics.quantiles(values, n=20)[-1]


def acceptance(rounds: Sequence[Round]) -> Acceptance | None:
    """From the counters' differences, summed over the rounds; None when nothing was drafted."""
    counters = {n: sum(r.counters.get(n) or 0.0 for r in rounds) for n in _COUNTERS}
    width = max(len(r.positions) for r in rounds)
    sums = [sum(r.positions[at] for r in rounds if at < len(r.positions)) for at in range(width)]
    if found := counted(counters, sums):
        return found
    told = [r.averages for r in rounds if r.averages.get("spec_accept_length")]
    if not told:
        return None
    return Acceptance(
        rate=told[-1].get("spec_accept_rate"), mean_length=told[-1]["spec_accept_length"] or 1.0
    )


def counted(counters: Mapping[str, float | None], positions: Sequence[float]) -> Acceptance | None:
    """From counters' differences by role; None when nothing was drafted."""
    drafts, drafted, accepted = (counters.get(n) or 0.0 for n in _COUNTERS)
    if not drafts or not drafted:
        return None
    return Acceptance(
        drafts=round(drafts),
        draft_tokens=round(drafted),
        accepted_tokens=round(accepted),
        rate=accepted / drafted,
        mean_length=1 + accepted / drafts,
        per_position=tuple(s / drafts for s in positions),
    )


def _peak(values: Sequence[float | None], name: str, missing: dict[str, str]) -> float | None:
    known = [v for v in values if v is not None]
    if not known:
        missing[name] = "the engine's metrics did not tell"
        return None
    return max(known)


def _preemptions(rounds: Sequence[Round], missing: dict[str, str]) -> int | None:
    known = [v for r in rounds if (v := r.counters.get("preemptions")) is not None]
    if len(known) < len(rounds):
        missing["preemptions"] = "this engine version has no such counter"
        return None
    return round(sum(known))


def _cards(
    rounds: Sequence[Round], missing: dict[str, str]
) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Peak memory and median power by card, else why not."""
    told = [r.gpu for r in rounds]
    if why := next((g["missing"] for g in told if "missing" in g), ""):
        missing["gpu_memory_mib"] = missing["gpu_power_w"] = why
        return None, None
    memory = tuple(max(n) for n in zip(*(g["memory_mib"] for g in told), strict=True))
    if any(g["power_w"] is None for g in told):
        missing["gpu_power_w"] = "a card tells no power"
        return memory, None
    return memory, tuple(statistics.median(w) for w in zip(*(g["power_w"] for g in told), strict=True))
