"""The inverse questions and calibration."""

import pytest

from checks.planner.calibrate import calibrate, read_log
from checks.planner.inverse import CardLike, cards_that_do, serves
from checks.planner.plan import plan
from checks.planner.units import GIB
from inventory.errors import UsageError
from tests.planner.factories import llama, scenario, speculating

CARDS = [CardLike("RTX 4090", int(23.6 * GIB)), CardLike("L40S", int(44.4 * GIB)), CardLike("T4", 15 * GIB)]

LOG = """
(EngineCore pid=9) INFO [core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: model='old'
(EngineCore pid=9) INFO [model_runner.py:302] Model loading took 99.00 GiB and 1.4 seconds
(EngineCore pid=9) INFO [core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: model='m'
(Worker_TP0 pid=9) INFO [model_runner.py:302] Model loading took 15.10 GiB memory and 1.410398 seconds
(Worker_TP1 pid=9) INFO [model_runner.py:302] Model loading took 15.12 GiB memory and 1.410398 seconds
(EngineCore pid=9) INFO [gpu_worker.py:538] Available KV cache memory: 50.73 GiB
(EngineCore pid=9) INFO [kv_cache_utils.py:2146] GPU KV cache size: 403,616 tokens
(EngineCore pid=9) INFO [model_runner.py:722] Graph capturing finished in 11 secs, took 1.27 GiB
"""


def test_what_is_asked_for_holds_or_the_most_that_does() -> None:
    s = scenario(total_gib=44.4)
    few, many = serves(s, requests=4, context=8192), serves(s, requests=400, context=32768)
    assert few.holds
    assert few.most_requests >= 4
    assert few.longest_context >= 8192
    assert not many.holds
    assert 0 < many.most_requests < 400
    assert many.longest_context < 32768
    assert serves(s, requests=many.most_requests, context=32768).holds


@pytest.mark.parametrize(("requests", "context"), [(0, 100), (1, 0), (-1, 5)])
def test_nothing_is_not_a_question(requests: int, context: int) -> None:
    with pytest.raises(UsageError):
        serves(scenario(), requests=requests, context=context)


def test_cards_that_do_are_the_smallest_counts() -> None:
    found = {f.card: f.gpus for f in cards_that_do(scenario(seqs=64, batched_tokens=2048), CARDS)}
    assert found == {"RTX 4090": 1, "L40S": 1, "T4": 2}
    for fit in cards_that_do(scenario(config=llama(num_hidden_layers=80)), CARDS):
        assert fit.plan.verdict == "fits"


def test_a_card_without_the_number_format_is_left_out() -> None:
    old = [CardLike("V100", 32 * GIB, bfloat16=False)]
    assert cards_that_do(scenario(seqs=64), old) == []
    assert cards_that_do(scenario(seqs=64, config=llama(torch_dtype="float16")), old)


def test_a_card_that_never_does_is_left_out() -> None:
    huge = scenario(config=llama(hidden_size=16384, num_attention_heads=128, num_hidden_layers=252))
    assert cards_that_do(huge, CARDS) == []


def test_a_log_replaces_estimates_and_says_so() -> None:
    made = calibrate(plan(speculating()), LOG)
    assert made.weights == int(15.12 * GIB)
    assert made.available_kv == int(50.73 * GIB)
    assert made.kv_tokens == 403616
    measured = {t.name for t in made.terms if t.measured}
    assert measured == {"target weights", "KV cache", "CUDA graphs"}
    assert made.band < plan(speculating()).band
    assert "measured" in made.notes[-1]


def test_device_use_settles_the_peak() -> None:
    made = calibrate(plan(scenario()), LOG, nvml_used=72 * GIB)
    assert made.device_peak == 72 * GIB
    assert sum(t.nbytes for t in made.terms) == 72 * GIB
    assert all(t.measured for t in made.terms)


def test_device_use_below_the_log_is_taken_whole() -> None:
    made = calibrate(plan(scenario()), LOG, nvml_used=20 * GIB)
    assert sum(t.nbytes for t in made.terms) == 20 * GIB


@pytest.mark.parametrize("text", ["", "INFO something else", "Model loading took a while"])
def test_a_log_without_numbers_changes_nothing(text: str) -> None:
    before = plan(scenario())
    after = calibrate(before, text)
    assert (after.terms, after.device_peak) == (before.terms, before.device_peak)
    assert "nothing is measured" in after.notes[-1]


def test_only_the_last_start_of_a_log_counts() -> None:
    assert read_log(LOG)["weights"] == 15.12
