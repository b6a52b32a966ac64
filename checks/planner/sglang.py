"""SGLang: a static pool for weights and KV, and a remainder for activations and graphs. A wide estimate.

The fraction's default and its window come from the SGLang 0.5.23 wheel (server_args.py); how much of the
remainder is in use after start was not measured here, so the band says half of it either way.
"""

from checks.planner.engines import Static, static_pool
from checks.planner.kv import layout_of
from checks.planner.loading import loaded
from checks.planner.result import Plan, Stop, Term
from checks.planner.scenario import Scenario
from checks.planner.units import GIB, MIB, gib
from checks.planner.work import Work

__all__ = ["default_fraction", "plan"]


def default_fraction(s: Scenario) -> float:
    """``--mem-fraction-static`` when it is not given: what a reserve for the dynamic part leaves."""
    rules = static_pool()
    reserve = _reserve(s, rules)
    return max(0.0, (s.device_total - reserve) / s.device_total)


def _reserve(s: Scenario, rules: Static) -> int:
    chunk = s.batched_tokens or rules.chunked_prefill(s.device_total)
    megabytes = rules.base_mb + rules.mb_per_token * max(chunk, rules.least_chunk) + s.tp * s.pp / 8 * 1024
    megabytes += rules.graph_mb_per_request * rules.graph_requests(s.device_total)
    if s.device_total > rules.large_gib * GIB:
        megabytes = max(megabytes, rules.large_reserve_mb)
    return int(megabytes * MIB)


def plan(s: Scenario, w: Work) -> Plan:
    """Weights and KV share ``device_total * fraction``; the rest must hold everything that comes and goes."""
    fraction = s.utilization if s.utilization is not None else default_fraction(s)
    static = int(s.device_total * fraction)
    target, draft, _passing = loaded(s, w)
    layout = layout_of(
        w.target, w.draft, tp=w.tp, kv_dtype=w.kv_dtype, block_size=1, batched_tokens=w.batched_tokens
    )
    available = static - target - draft - s.other_used
    rest = s.device_total - static
    stop = _stop(s, available, layout.needed(w.max_len), target + draft)
    source = static_pool().source
    terms = [
        Term("target weights", target, target // 50, "parameter shapes or tensor headers"),
        Term("draft weights", draft, draft // 20, "parameter shapes or tensor headers"),
        Term("KV cache", max(0, available), rest // 4, f"static pool at fraction {fraction:.3f}"),
        Term("activations, graphs, context", rest // 2, rest // 2, source),
    ]
    known = available > 0
    return Plan(
        scenario=s,
        terms=tuple(t for t in terms if t.nbytes),
        weights=target + draft,
        available_kv=available,
        kv_tokens=layout.tokens(available, w.max_len) if known else None,
        concurrency=layout.concurrency(available, w.max_len) if known else None,
        max_len=w.max_len,
        longest=layout.longest(available, w.max_len) if known else None,
        device_peak=sum(t.nbytes for t in terms) if stop is None else None,
        band=rest // 2,
        stop=stop,
        notes=("SGLang was not measured here: the band is wide",),
    )


def _stop(s: Scenario, available: int, needed: int, weights: int) -> Stop | None:
    if weights > s.device_total - s.other_used:
        return Stop("load", "oom-weights-load", f"weights {gib(weights)} GiB on {gib(s.device_total)} GiB")
    if available <= 0:
        text = (
            f"the static pool is {gib(-available)} GiB too small for the weights: raise --mem-fraction-static"
        )
        return Stop("static pool", "oom-static-fraction-window", text)
    if needed > available:
        text = f"one request needs {gib(needed)} GiB of KV cache, {gib(available)} GiB there"
        return Stop("static pool", "kv-cache-too-small", text)
    return None
