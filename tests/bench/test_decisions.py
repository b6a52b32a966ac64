"""Draft length, verdict, losslessness, and what is written into a deployment."""

import io
from pathlib import Path

import pytest

from checks.bench.draft_length import best_length, expected_tokens, lengths
from checks.bench.lossless import compare_outputs
from checks.bench.model import BenchResult, Verdict
from checks.bench.report import render
from checks.bench.verdict import by_concurrency, decide, gain
from inventory.errors import ChangeFailed, CheckRefused
from inventory.load import load_deployment
from inventory.model import Host
from provision.bench.apply import apply_verdict, wanted_values
from tests.bench.made import run_of, speedup

EAGLE = run_of("eagle3", {1: 0.02}, 3, (0.8, 0.6, 0.4))
NGRAM = run_of("ngram", {1: 0.02}, 3, (0.4, 0.2, 0.1))


# ---- draft length


def test_expected_tokens_follow_the_positions_and_go_on_falling() -> None:
    assert expected_tokens((0.8, 0.6, 0.4), 2) == pytest.approx(2.4)
    assert expected_tokens((0.8, 0.4), 4) == pytest.approx(1 + 0.8 + 0.4 + 0.2 + 0.1)
    assert expected_tokens((0.5,), 2) == pytest.approx(1.75)
    assert expected_tokens((), 3) == 1
    assert expected_tokens((0.0, 0.0), 4) == 1


def max_time(cost: float, kept: float) -> float:
    """Seconds for 0.1 s to the first token and 100 more, never more than without a draft."""
    return min(1.1, 0.1 + 100 * 0.010 * (1 + 4 * cost) / (1 + kept))


@pytest.mark.parametrize(("cost", "best"), [(0.9, 1), (0.5, 2), (0.25, 3), (0.01, 8)])
def test_the_best_length_follows_from_acceptance_and_cost(cost: float, best: int) -> None:
    """A draft token that costs ``cost`` of a target step; acceptance falls by a fifth each position."""
    kept = [0.8**n for n in range(1, 5)]
    plain = run_of("none", {1: 0.010, 4: 0.010})
    drafted = run_of("eagle3", {1: 0.010 * (1 + 4 * cost), 4: 0.010 * (1 + 4 * cost)}, 4, kept)
    found = lengths(drafted, plain)
    assert [d.num_speculative_tokens for d in found] == list(range(1, 9))
    assert [d.measured for d in found] == [n == 4 for n in range(1, 9)]
    assert found[3].speedup == pytest.approx(1.1 / max_time(cost, sum(kept)))
    assert best_length(found) == best


def test_a_measured_length_counts_more_than_an_estimate() -> None:
    plain = run_of("none", {1: 0.010})
    found = lengths(run_of("eagle3", {1: 0.012}, 4, (0.8, 0.6, 0.4, 0.3)), plain)
    guess = best_length(found)
    assert guess
    assert guess > 4
    assert best_length(found, {guess: 0.9, 4: 5.0}) == 4


def test_without_positions_or_steps_there_is_no_estimate() -> None:
    plain = run_of("none", {1: 0.010})
    assert lengths(run_of("eagle3", {1: 0.02}, 3), plain) == []
    assert lengths(run_of("eagle3", {2: 0.02}, 3, (0.5,)), plain) == []
    assert best_length([]) is None


# ---- verdict


def test_a_crossover_at_sixteen_is_found_at_sixteen() -> None:
    ratios = {1: 2.05, 2: 2.0, 4: 1.9, 8: 1.6, 16: 1.2, 32: 0.9}
    verdict = decide([EAGLE], [speedup("eagle3 k=3", c, r) for c, r in ratios.items()])
    assert verdict
    assert (verdict.strategy, verdict.num_speculative_tokens, verdict.off_above) == ("eagle3", 3, 16)
    assert verdict.certain
    assert "off above 16 (0.90 at 32)" in verdict.text


def test_what_pays_everywhere_is_never_off() -> None:
    verdict = decide([EAGLE], [speedup("eagle3 k=3", c, 1.5) for c in (1, 8)])
    assert verdict
    assert verdict.off_above is None
    assert verdict.certain


def test_what_pays_nowhere_is_no_speculation() -> None:
    verdict = decide([EAGLE], [speedup("eagle3 k=3", c, 0.8) for c in (1, 8)])
    assert verdict
    assert (verdict.strategy, verdict.certain) == ("none", True)
    assert verdict.text.startswith("no speculation")


def test_the_one_with_more_over_all_loads_wins() -> None:
    speedups = [speedup("eagle3 k=3", 1, 2.0), speedup("eagle3 k=3", 8, 1.1)]
    speedups += [speedup("ngram k=3", 1, 1.5), speedup("ngram k=3", 8, 1.7)]
    verdict = decide([EAGLE, NGRAM], speedups)
    assert verdict
    assert verdict.strategy == "ngram"
    assert gain(by_concurrency(speedups, "eagle3 k=3")) == pytest.approx((2.0 * 1.1) ** 0.5)


@pytest.mark.parametrize(
    ("reach", "n", "why"), [(0.2, 5, "at 8 and 16 the interval holds 1"), (0.001, 1, "it was measured once")]
)
def test_a_decision_that_hangs_on_noise_says_so(reach: float, n: int, why: str) -> None:
    speedups = [speedup("eagle3 k=3", c, r, reach, n) for c, r in {1: 2.0, 8: 1.1, 16: 0.95}.items()]
    verdict = decide([EAGLE], speedups)
    assert verdict
    assert not verdict.certain
    assert why in verdict.text


def test_nothing_to_compare_is_no_verdict() -> None:
    assert decide([EAGLE], []) is None
    assert decide([], []) is None


# ---- losslessness


def test_equal_answers_are_lossless() -> None:
    assert compare_outputs(["a b", "c"], ["a b", "c"]).same is True
    assert compare_outputs([], []).same is None


@pytest.mark.parametrize(
    ("got", "batch", "dtype", "why"),
    [
        (["one two six", "x y"], ["one two three", "x z"], "bfloat16", "batch-dependent numerics: without"),
        (["one two six", "x y"], ["one two three", "x y"], "bfloat16", "batch-dependent numerics are likely"),
        (["one two six", "x y"], [], "float32", "worth a look"),
        (["!", "!"], [], None, "this is no rounding"),
    ],
)
def test_the_first_difference_is_explained(
    got: list[str], batch: list[str], dtype: str | None, why: str
) -> None:
    found = compare_outputs(["one two three", "x y"], got, plain_in_batch=batch, dtype=dtype, workload="code")
    assert found.same is False
    assert why in found.why
    if got[0] != "!":
        assert (found.at, found.differing, found.expected, found.got) == (8, 1, "three", "six")


# ---- what is written

TEXT = """\
# ours
engine: vllm
engine_version: 0.33.0   # pinned
target: {repo: a/b}
draft:
  method: eagle3
  num_speculative_tokens: 3  # a guess
  model: {repo: a/head}
"""


def verdict_of(**changes: object) -> Verdict:
    base = {"strategy": "eagle3", "num_speculative_tokens": 5, "off_above": 16, "certain": True, "text": "t"}
    return Verdict.model_validate(base | changes)


def test_the_verdict_is_written_and_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / "chat.yml"
    path.write_text(TEXT)
    host = Host(name="gpu01", address="x")
    told = apply_verdict(host, str(path), verdict_of(), "0.33.0")
    assert told[-1] == "next: invoke provision --host gpu01"
    text = path.read_text()
    assert "num_speculative_tokens: 5  # a guess" in text
    assert "# pinned" in text
    draft = load_deployment(path).draft
    assert (draft.num_speculative_tokens, draft.max_batch_size) == (5, 16)
    assert "already so" in apply_verdict(host, str(path), verdict_of(), "0.33.0")[0]


def test_what_the_inventory_overrides_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "chat.yml"
    path.write_text(TEXT)
    overrides = {"eyas_overrides": {"draft": {"num_speculative_tokens": 2}}}
    with pytest.raises(ChangeFailed, match="overridden"):
        apply_verdict(Host(name="gpu01", address="x", vars=overrides), str(path), verdict_of(), "0.33.0")
    assert path.read_text() == TEXT


def test_a_version_that_cannot_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "chat.yml"
    path.write_text(TEXT.replace("0.33.0", "0.19.1"))
    values, notes = wanted_values(load_deployment(path), verdict_of(), "0.19.1")
    assert values == {"num_speculative_tokens": 5}
    assert "at most 16 requests" in notes[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"certain": False}, "nothing is written"), ({"strategy": "ngram"}, "yours to write")],
)
def test_what_is_not_certain_or_another_strategy_is_refused(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    path = tmp_path / "chat.yml"
    path.write_text(TEXT)
    with pytest.raises(CheckRefused, match=why):
        apply_verdict(Host(name="gpu01", address="x"), str(path), verdict_of(**changes), "0.33.0")
    assert path.read_text() == TEXT


# ---- for people


def test_the_table_names_everything_that_decides() -> None:
    from rich.console import Console

    sample = Path(__file__).resolve().parents[1] / "data" / "bench" / "sample.json"
    out = Console(width=200, record=True, file=io.StringIO())
    out.print(render(BenchResult.from_json(sample.read_bytes())))
    text = out.export_text()
    for word in (
        "SPEEDUP OVER NONE",
        "AT 32",
        "+1400",
        "-8,000",
        "off above 16",
        "NVML: not supported",
        "81%",
    ):
        assert word in text, word
