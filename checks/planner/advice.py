"""The cheapest changes that make a start fit, each one planned again, with what it costs.

Tried in order of what they cost the user: sequences, batched tokens, utilisation, length, fp8 KV, fewer
drafts, n-gram drafts, more GPUs, a quantised target. Nothing is proposed that the planner did not re-check.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from checks.planner.plan import plan
from checks.planner.result import Plan
from checks.planner.scenario import Scenario
from inventory.errors import EyasError

__all__ = ["Advice", "advise"]

_SEQS = (1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 4, 2, 1)
_TOKENS = (16384, 8192, 4096, 2048, 1024, 512)
_TP = (2, 4, 8, 16)
#: Utilisations worth trying, nearest first; above 0.97 nothing is left for what the engine does not count.
_UTILIZATIONS = tuple(n / 100 for n in range(97, 4, -1))
_NOT_A_SIZE = frozenset({"spec-legacy-flags"})
_ONLINE_FP8: dict[str, Any] = {"quant_method": "fp8"}
_AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 128}


@dataclass(frozen=True)
class Advice:
    """One change: the role it changes, the new value, the plan with it, and what the user gives up."""

    change: str
    value: str
    plan: Plan
    cost: str

    def to_json(self) -> dict[str, Any]:
        return {"change": self.change, "value": self.value, "cost": self.cost, "plan": self.plan.to_json()}


@dataclass(frozen=True)
class _Try:
    change: str
    value: str
    scenario: Scenario
    cost: str


def advise(s: Scenario, *, limit: int = 9) -> list[Advice]:
    """Single changes that make ``s`` start, cheapest first; if none does, pairs of changes, then a chain.

    Empty when ``s`` already fits, or when no change of sizes can help.
    """
    now = plan(s)
    if now.verdict == "fits" or now.reason in _NOT_A_SIZE:
        return []
    singles = _singles(s, now)
    if now.stop is not None and now.stop.stage == "configuration" and not _mends(singles):
        singles = _pairs(s, now, (_fewer_gpus,)) + singles
    return (singles or _pairs(s, now, _STRUCTURAL) or _chain(s, now))[:limit]


def _mends(found: list[Advice]) -> bool:
    """True when a refused split is mended by itself."""
    return any(a.change in {"tensor_parallel", "draft.tensor_parallel"} for a in found)


def _singles(s: Scenario, now: Plan) -> list[Advice]:
    found = (_first_that_starts(kind(s, now), better_than=now) for kind in _KINDS)
    return [a for a in found if a is not None]


def _pairs(s: Scenario, now: Plan, kinds: "tuple[_Kind, ...]") -> list[Advice]:
    """A structural change that is not enough by itself, with the cheapest further one."""
    found = []
    for kind in kinds:
        for t in kind(s, now):
            made = _planned(t.scenario)
            further = _singles(t.scenario, made) if made is not None else []
            if further:
                found.append(_joined(t, further[0]))
                break
    return found


def _joined(first: _Try, then: Advice) -> Advice:
    change, value = f"{first.change} + {then.change}", f"{first.value} + {then.value}"
    return Advice(change, value, then.plan, f"{first.cost}; {then.cost}")


def _first_that_starts(tries: Iterator[_Try], *, better_than: Plan) -> Advice | None:
    """The mildest try that fits; else the mildest that at least starts, when the plan now doesn't."""
    starts: Advice | None = None
    for t in tries:
        made = _planned(t.scenario)
        if made is None or not made.starts:
            continue
        if made.verdict == "fits":
            return Advice(t.change, t.value, made, t.cost)
        if starts is None and not better_than.starts:
            starts = Advice(t.change, t.value, made, t.cost)
    return starts


def _planned(s: Scenario) -> Plan | None:
    try:
        return plan(s)
    except EyasError:
        return None


def _chain(s: Scenario, now: Plan) -> list[Advice]:
    """Each kind of change at its strongest, one on top of the other, until the start fits."""
    names: list[str] = []
    values: list[str] = []
    costs: list[str] = []
    for kind in _CHAINABLE:
        strongest = list(kind(s, now))[-1:]
        if not strongest:
            continue
        names.append(strongest[0].change)
        values.append(strongest[0].value)
        costs.append(strongest[0].cost)
        s = strongest[0].scenario
        made = _planned(s)
        if made is not None and made.starts:
            return [Advice(" + ".join(names), " + ".join(values), made, "; ".join(costs))]
    return []


def _seqs(s: Scenario, _now: Plan) -> Iterator[_Try]:
    current = s.used_seqs()
    for n in _SEQS:
        if n < current:
            cost = f"at most {n} requests run at once (now {current}); further ones wait"
            yield _Try("max_num_seqs", str(n), s.with_(seqs=n), cost)


def _few_seqs(s: Scenario, now: Plan) -> Iterator[_Try]:
    """A few sizes only, to go with another change."""
    return (t for t in _seqs(s, now) if t.value in {"128", "32", "8"})


def _tokens(s: Scenario, _now: Plan) -> Iterator[_Try]:
    current = s.used_batched_tokens()
    for n in _TOKENS:
        if n < current and n >= s.used_seqs():
            cost = f"a step takes {n} prompt tokens (now {current}): long prompts start answering later"
            yield _Try("max_num_batched_tokens", str(n), s.with_(batched_tokens=n), cost)


def _utilization(s: Scenario, now: Plan) -> Iterator[_Try]:
    """More when the budget is short, less when the device is."""
    current = s.used_utilization()
    short_budget = now.reason in {"kv-cache-no-memory", "kv-cache-too-small"} and s.kv_bytes is None
    for value in sorted(_UTILIZATIONS, key=lambda u: abs(u - current)):
        if short_budget and value > current:
            cost = "less is left on the card for what the engine does not count"
        elif not short_budget and value < current:
            cost = "less KV cache: fewer tokens of context in flight"
        else:
            continue
        yield _Try("gpu_memory_utilization", f"{value:.2f}", s.with_(utilization=value), cost)


def _length(s: Scenario, now: Plan) -> Iterator[_Try]:
    current = now.max_len or 0
    if now.longest and now.longest < current:
        step = 1024 if now.longest > 2048 else 16
        n = now.longest // step * step
        if n:
            cost = f"requests of at most {n} tokens, prompt and answer (now {current})"
            yield _Try("max_model_len", str(n), s.with_(max_len=n, auto_len=False), cost)


def _fp8_kv(s: Scenario, _now: Plan) -> Iterator[_Try]:
    if s.kv_dtype in {"auto", "bfloat16", "float16"}:
        cost = (
            "keys and values at 8 bits: twice the tokens, a small loss of quality without calibrated scales"
        )
        yield _Try("kv_cache_dtype", "fp8", s.with_(kv_dtype="fp8"), cost)


def _fewer_drafts(s: Scenario, _now: Plan) -> Iterator[_Try]:
    for k in range(s.k - 1, 0, -1):
        spec = {**s.speculative, "num_speculative_tokens": k}
        spec = {name: v for name, v in spec.items() if not name.startswith("synthetic_")}
        if spec.get("rejection_sample_method") == "synthetic":
            del spec["rejection_sample_method"]
        cost = f"{k} draft tokens a step (now {s.k}): a smaller speed-up where acceptance is high"
        yield _Try("num_speculative_tokens", str(k), s.with_(speculative=spec), cost)


def _ngram(s: Scenario, _now: Plan) -> Iterator[_Try]:
    if s.needs_draft and s.engine == "vllm":
        spec = {"method": "ngram", "num_speculative_tokens": s.k or 4, "prompt_lookup_max": 4}
        cost = "drafts only where the answer repeats the prompt; no draft weights, no draft KV"
        changed = s.with_(speculative=spec, draft_config=None, draft_tensors=None)
        yield _Try("draft.method", "ngram", changed, cost)


def _gpus(s: Scenario, _now: Plan) -> Iterator[_Try]:
    for tp in _TP:
        if tp <= s.tp or (s.gpus is not None and tp * s.pp > s.gpus):
            continue
        spec = dict(s.speculative)
        spec.pop("draft_tensor_parallel_size", None)
        cost = f"{tp} GPUs instead of {s.tp}, and traffic between them at every layer"
        yield _Try("tensor_parallel", str(tp), s.with_(tp=tp, speculative=spec), cost)


def _fewer_gpus(s: Scenario, now: Plan) -> Iterator[_Try]:
    """When the split itself is refused: a size that divides."""
    if not (now.reason or "").startswith("tp-"):
        return
    if now.reason == "tp-draft-size-invalid":
        spec = {**s.speculative, "draft_tensor_parallel_size": s.tp}
        yield _Try("draft.tensor_parallel", str(s.tp), s.with_(speculative=spec), "none: the only valid size")
    for tp in range(s.tp - 1, 0, -1):
        yield _Try("tensor_parallel", str(tp), s.with_(tp=tp), f"{tp} GPUs of {s.tp} work")


def _quantised(s: Scenario, _now: Plan) -> Iterator[_Try]:
    if s.quantization or s.config.get("quantization_config"):
        return
    for name, scheme, cost in (
        ("fp8", _ONLINE_FP8, "weights at 8 bits: close to the original, needs compute capability 8.9"),
        ("awq 4-bit", _AWQ, "weights at 4 bits: another checkpoint, some loss of quality"),
    ):
        config = {**s.config, "quantization_config": scheme}
        yield _Try("quantization", name, s.with_(config=config, tensors=None), cost)


_Kind = Callable[[Scenario, Plan], Iterator[_Try]]
_KINDS: tuple[_Kind, ...] = (
    _fewer_gpus,
    _seqs,
    _tokens,
    _utilization,
    _length,
    _fp8_kv,
    _fewer_drafts,
    _ngram,
    _gpus,
    _quantised,
)
_STRUCTURAL: tuple[_Kind, ...] = (_fewer_gpus, _few_seqs, _fp8_kv, _ngram, _gpus, _quantised)
_CHAINABLE: tuple[_Kind, ...] = (_seqs, _tokens, _fp8_kv, _ngram, _gpus, _quantised)
