"""Statistics, cells, baseline: a 10 % slowdown is seen, 1 % noise is not, and too little says so."""

import json
import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from checks.bench.baseline import against, samples
from checks.bench.cells import MOST, enough, make_cell
from checks.bench.model import BenchResult, Spread
from checks.bench.statistics import judged, paired_change, ratio, settled, spread
from tests.bench.made import a_round, proof

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "bench" / "sample.json"


@pytest.mark.parametrize("seed", range(20))
def test_a_slowdown_of_ten_percent_is_seen_each_time(seed: int) -> None:
    found = against(proof(90, noise=0.01, seed=seed), proof(100, noise=0.01, seed=1000 + seed))
    assert found.answer == "fail", found.text
    assert next(r for r in found.rows if r.name == "tokens a step").answer == "pass"


@pytest.mark.parametrize("seed", range(20))
def test_one_percent_of_noise_is_no_slowdown(seed: int) -> None:
    found = against(proof(100, noise=0.01, seed=seed), proof(100, noise=0.01, seed=2000 + seed))
    assert found.answer == "pass", found.text


def test_too_much_noise_is_not_taken_for_an_answer() -> None:
    answers = [
        against(proof(97, noise=0.2, seed=s), proof(100, noise=0.2, seed=99 + s)).answer for s in range(20)
    ]
    assert answers.count("can't tell") >= 17


def test_lost_acceptance_is_a_failure_however_fast_it_is() -> None:
    before = proof(100, noise=0.0, seed=1)
    assert against(proof(120, noise=0.0, seed=1, length=1.4), before).answer == "fail"
    none = {"samples": [{k: v for k, v in s.items() if k != "step_tokens"} for s in before["samples"]]}
    found = against(none, before)
    assert found.answer == "fail"
    assert "tokens a step" in found.text
    assert against(before, none).answer == "pass", "drafts that are new are no loss"


@pytest.mark.parametrize("before", [None, {}, {"samples": []}, {"samples": None}, {"tokens_per_s": 9}])
def test_without_a_baseline_nobody_can_tell(before: dict[str, object] | None) -> None:
    assert against(proof(100, noise=0, seed=1), before).answer == "can't tell"


def test_samples_of_a_broken_proof_are_left_out() -> None:
    odd = [{"prompt": 0, "tokens_per_s": None}, "x", {"prompt": 1, "tokens_per_s": 0}, {"tokens_per_s": 5}]
    assert samples({"samples": odd}, "tokens_per_s") == {}


# ---- statistics


def test_an_interval_needs_repeats_and_holds_the_median() -> None:
    assert spread([5.0]).relative == math.inf
    assert not settled(spread([5.0]))
    found = spread([100, 101, 99, 100, 130])
    assert found.low <= found.median <= found.high
    assert settled(spread([100, 100.5, 99.8]))
    assert not settled(spread([100, 110, 92]))


def test_a_ratio_is_as_wide_as_both_sides_together() -> None:
    found = ratio([200, 202, 198], [100, 101, 99])
    assert found.median == 2
    assert found.low < 2 < found.high
    assert ratio([2.0], [1.0]).n == 1
    assert ratio([2.0, 2.0], [1.0, 1.0]).high == 2


def test_pairs_leave_out_what_the_prompts_differ_in() -> None:
    found = paired_change([10.0, 20.0, 40.0], [5.0, 10.0, 20.0])
    assert (found.low, found.median, found.high) == (2, 2, 2)
    with pytest.raises(ValueError, match="can't be paired"):
        paired_change([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [(0.8, 0.9, "fail"), (0.97, 1.1, "pass"), (0.9, 0.97, "can't tell"), (0.94, 0.96, "can't tell")],
)
def test_only_an_interval_on_one_side_tells(low: float, high: float, answer: str) -> None:
    assert judged(Spread(median=(low + high) / 2, low=low, high=high, n=4)) == answer


# ---- cells


@pytest.mark.parametrize("accepted", [(), (0.8, 0.6, 0.4)])
def test_the_step_time_comes_back_whatever_is_accepted(accepted: tuple[float, ...]) -> None:
    rounds = [a_round(0.020, concurrency=8, accepted=accepted, noise=0.005, seed=n) for n in range(4)]
    cell = make_cell("code", 8, rounds)
    assert cell.step_ms
    assert cell.step_ms.median == pytest.approx(20, rel=0.01)
    assert cell.settled
    assert cell.missing["gpu_power_w"] == "the engine runs on the CPU"
    if accepted:
        assert cell.acceptance
        assert cell.acceptance.per_position == pytest.approx(accepted)
        assert cell.acceptance.mean_length == pytest.approx(2.8)
        assert cell.acceptance.drafts == 4000
    else:
        assert cell.acceptance is None
        assert cell.missing["acceptance"] == "nothing was drafted"


def test_throughput_is_of_all_streams() -> None:
    cell = make_cell("code", 8, [a_round(0.020, concurrency=8)] * 3)
    assert cell.tokens_per_s_total.median == pytest.approx(8 * 101 / 2.1)
    assert cell.tokens_per_s_request
    assert cell.tokens_per_s_request.median == pytest.approx(50)


def test_repeats_end_when_five_percent_can_be_told_or_never() -> None:
    quiet = [a_round(0.02, noise=0.001, seed=n) for n in range(3)]
    assert not enough(quiet[:2], 1)
    assert enough(quiet, 1)
    noisy = [a_round(0.02, noise=0.3, seed=n) for n in range(MOST)]
    assert not enough(noisy[:5], 1)
    assert enough(noisy, 1)
    assert enough(quiet[:1], 1, most=1)
    assert not make_cell("code", 1, noisy).settled


def test_answers_of_one_token_have_no_pace() -> None:
    cell = make_cell("code", 1, [a_round(0.02, tokens=1)] * 3)
    assert cell.itl_ms is None
    assert cell.step_ms is None
    assert "one token" in cell.missing["itl_ms"]


def test_an_engine_with_averages_alone_has_no_counts() -> None:
    told = a_round(0.02)
    averages = {"spec_accept_length": 2.5, "spec_accept_rate": 0.5}
    cell = make_cell("code", 1, [type(told)(**{**vars(told), "averages": averages})] * 3)
    assert cell.acceptance
    assert (cell.acceptance.drafts, cell.acceptance.mean_length) == (None, 2.5)


# ---- the document


def test_the_sample_reads_back() -> None:
    found = BenchResult.from_json(SAMPLE.read_bytes())
    assert BenchResult.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["schema"] == 1


@pytest.mark.parametrize("change", [{"schema": 2}, {"other": 1}, {"host": None}])
def test_another_shape_is_refused(change: dict[str, object]) -> None:
    data = json.loads(SAMPLE.read_text()) | change
    with pytest.raises(ValidationError):
        BenchResult.from_json(json.dumps(data))
