"""What must hold for any sizes: more work never needs less memory, more ranks never more weights a rank."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from checks.planner.plan import layout, plan
from checks.planner.result import Plan
from checks.planner.scenario import Scenario
from checks.planner.units import GIB
from tests.planner.factories import eagle3, llama, scenario, speculating

HUGE = 4096 * GIB
SEQS = st.sampled_from([1, 8, 16, 32, 64, 100, 256, 512, 1024])
TOKENS = st.sampled_from([1024, 2048, 4096, 8192, 16384])
LENGTHS = st.integers(64, 65536)
METHODS = st.sampled_from(["none", "ngram", "eagle3"])


def peak_without_kv(s: Scenario) -> int:
    """Everything but the KV cache, which fills what the budget leaves."""
    made = plan(s.with_(kv_bytes=64 * GIB, utilization=0.5, device_total=HUGE))
    assert made.starts, made.stop
    return sum(t.nbytes for t in made.terms if t.name != "KV cache")


def build(method: str, **changes: Any) -> Scenario:
    if method == "none":
        return scenario(**changes)
    if method == "ngram":
        return scenario(speculative={"method": "ngram", "num_speculative_tokens": 4}, **changes)
    return speculating(**changes)


@settings(max_examples=25, deadline=None)
@given(METHODS, SEQS, SEQS, TOKENS, st.booleans())
def test_more_sequences_never_need_less(method: str, a: int, b: int, tokens: int, eager: bool) -> None:
    low, high = sorted((a, b))
    one = build(method, seqs=low, batched_tokens=tokens, eager=eager)
    assert peak_without_kv(one) <= peak_without_kv(one.with_(seqs=high))


@settings(max_examples=25, deadline=None)
@given(METHODS, TOKENS, TOKENS, SEQS)
def test_more_batched_tokens_never_leave_more_cache(method: str, a: int, b: int, seqs: int) -> None:
    low, high = sorted((a, b))
    one = build(method, seqs=seqs, batched_tokens=low, eager=True)
    assert (plan(one).available_kv or 0) >= (plan(one.with_(batched_tokens=high)).available_kv or 0)


@settings(max_examples=25, deadline=None)
@given(LENGTHS, LENGTHS)
def test_a_longer_request_never_needs_less(a: int, b: int) -> None:
    low, high = sorted((a, b))
    kv = layout(scenario().work())
    assert kv.needed(low) <= kv.needed(high)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), SEQS.filter(lambda n: n <= 512))
def test_more_drafts_never_need_less(a: int, b: int, seqs: int) -> None:
    """While the warm-up's batch holds every sequence: 8192 tokens for k + 2 each."""
    low, high = sorted((a, b))
    one, more = (speculating(k=k, seqs=seqs, eager=True) for k in (low, high))
    assert peak_without_kv(one) <= peak_without_kv(more)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([8, 4, 2, 1]))
def test_more_ranks_never_hold_more_weights_each(a: int, b: int, kv_heads: int) -> None:
    low, high = sorted((a, b))
    config, head = llama(num_key_value_heads=kv_heads), eagle3(num_key_value_heads=kv_heads)
    spec = {"method": "eagle3", "num_speculative_tokens": 3}
    s = scenario(config=config, draft_config=head, speculative=spec, tp=low)
    assert weights(plan(s)) >= weights(plan(s.with_(tp=high)))


def weights(made: Plan) -> int:
    assert made.weights is not None
    return made.weights


@settings(max_examples=30, deadline=None)
@given(st.floats(0.3, 0.95), st.floats(0.3, 0.95))
def test_more_utilization_never_gives_less_cache(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert (plan(scenario(utilization=low)).available_kv or 0) <= (
        plan(scenario(utilization=high)).available_kv or 0
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 64), st.integers(16, 32768))
def test_longest_is_the_largest_that_fits(gib: int, limit: int) -> None:
    kv = layout(scenario().work())
    longest = kv.longest(gib * GIB // 8, limit)
    assert kv.needed(longest) <= gib * GIB // 8
    assert longest == limit or kv.needed(longest + 1) > gib * GIB // 8
