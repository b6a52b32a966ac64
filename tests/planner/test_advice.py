"""Advice: in order of cost, re-planned, never a change that doesn't help."""

import pytest

from checks.planner.advice import advise
from checks.planner.plan import plan
from checks.planner.scenario import Scenario
from checks.planner.units import GIB
from tests.planner.factories import llama, scenario, speculating

ORDER = [
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "max_model_len",
    "kv_cache_dtype",
    "num_speculative_tokens",
    "draft.method",
    "tensor_parallel",
    "quantization",
]

FAILING = [
    speculating(total_gib=23.6, seqs=1024, batched_tokens=8192, eager=True),
    scenario(total_gib=23.6, utilization=0.8, max_len=131072),
    scenario(total_gib=18, utilization=0.85),
    scenario(total_gib=12),
    scenario(other_used=55 * GIB),
    scenario(other_used=60 * GIB),
]


@pytest.mark.parametrize("s", FAILING, ids=lambda s: plan(s).reason or "")
def test_every_advice_starts_and_comes_in_order_of_cost(s: Scenario) -> None:
    found = advise(s)
    assert found
    for a in found:
        assert a.plan.starts, a.change
        assert a.cost
        assert plan(a.plan.scenario) == a.plan
    places = [ORDER.index(a.change) for a in found if a.change in ORDER]
    assert places == sorted(places)


def test_fewer_sequences_come_first_when_the_warm_up_is_too_large() -> None:
    s = speculating(total_gib=23.6, seqs=1024, batched_tokens=8192, eager=True)
    first = advise(s)[0]
    assert first.change == "max_num_seqs"
    assert int(first.value) < 1024
    assert plan(s.with_(seqs=int(first.value))).starts


def test_a_short_budget_is_raised_and_a_full_card_lowered() -> None:
    short = advise(scenario(total_gib=23.6, utilization=0.8, max_len=32768))
    raised = next(a for a in short if a.change == "gpu_memory_utilization")
    assert float(raised.value) > 0.8
    full = advise(scenario(other_used=55 * GIB))
    lowered = next(a for a in full if a.change == "gpu_memory_utilization")
    assert float(lowered.value) < 0.92


def test_two_changes_come_together_when_one_is_not_enough() -> None:
    found = advise(scenario(other_used=60 * GIB))
    assert found[0].change == "max_num_seqs + gpu_memory_utilization"
    assert found[0].plan.starts


def test_what_fits_gets_no_advice() -> None:
    assert advise(scenario()) == []


def test_a_split_that_does_not_divide_gets_one_that_does() -> None:
    found = advise(scenario(config=llama(num_attention_heads=36, hidden_size=4608), tp=8, gpus=8))
    assert (found[0].change, found[0].value) == ("tensor_parallel", "4")


def test_a_wrong_draft_split_gets_the_right_one() -> None:
    s = speculating(tp=2)
    s = s.with_(speculative={**s.speculative, "draft_tensor_parallel_size": 4})
    first = advise(s)[0]
    assert first.change.startswith("draft.tensor_parallel")
    assert first.value.startswith("2")
    assert first.plan.starts


def test_changes_are_chained_when_none_is_enough() -> None:
    s = scenario(total_gib=7.6, gpus=1, max_len=4096, seqs=256)
    found = advise(s)
    assert len(found) == 1
    assert "quantization" in found[0].change
    assert found[0].plan.starts


def test_no_change_of_size_mends_a_command_line() -> None:
    assert advise(scenario(extra_args=("--speculative-model", "x"))) == []
