"""The gate's comparison: tolerances, noise, and numbers nobody measured."""

from typing import Any

import pytest

from provision.rollout.gate import Tolerance, better_of, compare

BASE: dict[str, Any] = {
    "ttft_ms": 100.0,
    "tokens_per_s": 200.0,
    "drafts": 100.0,
    "draft_tokens": 300.0,
    "accepted_tokens": 210.0,
    "acceptance_rate": 0.7,
    "acceptance_length": 3.1,
}


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ({}, ""),
        ({"ttft_ms": 149}, ""),
        ({"ttft_ms": 151}, "first token"),
        ({"tokens_per_s": 151}, ""),
        ({"tokens_per_s": 149}, "tokens/s"),
        ({"acceptance_rate": 0.35, "acceptance_length": 2.05}, "accepted a draft"),
        ({"acceptance_length": 2.9}, ""),
        # Five drafted tokens instead of three: a lower share is natural, fewer accepted is not.
        ({"draft_tokens": 500.0, "acceptance_rate": 0.5, "acceptance_length": 3.5}, ""),
        ({"draft_tokens": 500.0, "acceptance_rate": 0.3, "acceptance_length": 2.5}, "accepted a draft"),
        # One instead of three: fewer accepted is natural, a lower share is not.
        ({"draft_tokens": 100.0, "acceptance_rate": 0.8, "acceptance_length": 1.8}, ""),
        ({"draft_tokens": 100.0, "acceptance_rate": 0.4, "acceptance_length": 1.4}, "acceptance rate"),
    ],
)
def test_tolerances(now: dict[str, Any], reason: str) -> None:
    verdict = compare({**BASE, **now}, BASE, Tolerance())
    assert verdict.green is (reason == "")
    assert reason in verdict.text


def test_a_fast_host_is_not_red_for_some_milliseconds() -> None:
    assert compare({**BASE, "ttft_ms": 19}, {**BASE, "ttft_ms": 5}, Tolerance()).green


@pytest.mark.parametrize("before", [None, {}])
def test_no_baseline_is_said(before: dict[str, Any] | None) -> None:
    verdict = compare(BASE, before, Tolerance())
    assert verdict.green
    assert "no baseline" in verdict.notes[0]


@pytest.mark.parametrize("value", [None, "fast", True])
def test_what_nobody_measured_is_noted_and_not_called_good(value: Any) -> None:
    verdict = compare({**BASE, "tokens_per_s": value}, BASE, Tolerance())
    assert verdict.green
    assert any("tokens/s not compared" in note for note in verdict.notes)
    assert "tokens/s" not in verdict.compared


def test_speculation_switched_off_is_noted() -> None:
    now = {"ttft_ms": 90.0, "tokens_per_s": 190.0, "draft_tokens": None, "acceptance_length": None}
    verdict = compare(now, BASE, Tolerance())
    assert verdict.green
    assert any("nothing is drafted now" in note for note in verdict.notes)


def test_the_better_of_two_runs_counts() -> None:
    best = better_of({**BASE, "ttft_ms": 90.0, "tokens_per_s": 100.0}, {**BASE, "ttft_ms": 300.0})
    assert (best["ttft_ms"], best["tokens_per_s"], best["measured"]) == (90.0, 200.0, 2)
