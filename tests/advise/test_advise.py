"""Which way of serving is advised, by what; what is refused; what is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.advise import Answer, advise
from checks.advise.command import answer, question
from checks.advise.data import Curve, load_data
from checks.advise.gain import cost_at, estimate, interpolated, last_paying, ridge, stretch
from checks.bench.draft_length import expected_tokens
from checks.bench.model import BenchResult
from checks.facts import Missing
from checks.modelmeta import HubDenied, HubUnreachable, ModelMeta, RepoMissing
from checks.planner.deployment import gpus_of_card
from checks.planner.surface import Ask, answer_for
from inventory.errors import CheckRefused, UsageError
from inventory.hardware import card_named, load_cards
from inventory.load import load_deployment
from inventory.model import ModelRef
from tests.report import making

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
HEAD = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
CURVE = load_data().curve[0]


def meta(label: str, config: dict[str, Any]) -> ModelMeta:
    return ModelMeta(
        label=label, commit="0" * 40, config=config, generation_config=Missing("none"),
        tensors=Missing("not read"), files={}, tokenizer=Missing("not read"), total_bytes=0,
    )  # fmt: skip


def load(ref: ModelRef) -> ModelMeta:
    """A hub that has the target and one head."""
    if ref.label == LLAMA:
        return meta(LLAMA, making.CONFIG)
    if ref.label == HEAD:
        return meta(HEAD, making.HEAD)
    raise RepoMissing(ref.label, f"{ref.label} is not there")


def ask(**words: str) -> Any:
    return question(**{"model": LLAMA, "gpus": "4x RTX 4090", "users": "12", "use": "chat"} | words)


def said(a: Answer, what: str) -> Any:
    return next(x for x in a.lines if x.what == what)


# ---- the decision


def test_a_head_is_advised_with_its_source_and_standing() -> None:
    a = advise(ask(), load)
    assert a.deployment.draft.method == "eagle3"
    assert a.deployment.draft.model == ModelRef(repo=HEAD)
    assert a.gain is not None
    assert a.gain > 1.05
    assert "(estimated, its acceptance assumed)" in a.verdict
    assert said(a, "strategy").known == "catalogue"
    assert said(a, "tokens a step").known == "assumed"
    assert said(a, "step cost").known == "estimated"
    assert "NVIDIA H200" in said(a, "step cost").by
    assert said(a, "KV cache").known == "planned"
    assert any(
        p["draft"].startswith("draft_model with") and "is not there" in p["why"] for p in a.passed_over
    )


def alone(ref: ModelRef) -> ModelMeta:
    """A hub that has the target and no draft at all."""
    if ref.label != LLAMA:
        raise RepoMissing(ref.label, "not there")
    return load(ref)


def test_where_drafts_cost_more_than_they_give_the_number_is_named() -> None:
    a = advise(ask(gpus="2x H200", users="100", use="rag", context="1024"), alone)
    assert a.deployment.draft.method == "none"
    assert a.gain is None
    assert a.off_above is not None
    assert 0 < a.off_above < 100
    assert a.verdict == f"no speculation: above {a.off_above} at once it costs more than it gives"
    assert (
        advise(ask(gpus="2x H200", users="4", use="rag", context="1024"), alone).deployment.draft.method
        == "ngram"
    )
    never = advise(ask(gpus="H200", users="4", use="chat", context="1024"), alone)
    assert never.verdict.endswith("at any number of requests")


def test_beyond_what_was_measured_nothing_is_promised() -> None:
    a = advise(ask(gpus="8x H200", users="512", context="1024"), load)
    assert a.deployment.draft.method == "none"
    assert a.verdict.startswith("no speculation: ")
    assert "nothing was measured above 128 at once" in {p["why"] for p in a.passed_over}


def test_the_off_point_is_where_the_gain_ends() -> None:
    positions = tuple(0.3**n for n in range(1, 9))
    found = estimate(CURVE, positions, 1, 1.0)
    assert found.off_above is not None

    def gain(n: int) -> float:
        return expected_tokens(positions, found.k) / cost_at(CURVE, n, found.k)

    assert gain(found.off_above) >= 1.05 > gain(found.off_above + 1)
    assert last_paying(lambda n: 2.0 if n <= 16 else 0.9, 64) == 16
    assert last_paying(lambda _n: 0.9, 64) == 0
    assert last_paying(lambda _n: 2.0, 64) is None


@pytest.mark.parametrize("curve", load_data().curve, ids=lambda c: c.method)
def test_what_was_measured_comes_back_from_the_curve(curve: Curve) -> None:
    """At its own k, acceptance and machine the estimate is the measurement."""
    plain, k = dict(curve.plain), curve.num_speculative_tokens
    for n, fast in curve.speculative:
        assert curve.acceptance_length / cost_at(curve, n, k) == pytest.approx(fast / plain[n], rel=1e-6)


def test_less_arithmetic_a_byte_pays_to_fewer_at_once() -> None:
    ada, hopper = card_named("RTX 4090"), card_named("H200")
    assert ada
    assert hopper
    assert stretch(CURVE, hopper, 16, load_data()) == pytest.approx(1)
    assert stretch(CURVE, ada, 16, load_data()) > 1
    assert stretch(CURVE, ada, 4, load_data()) == pytest.approx(4 * stretch(CURVE, ada, 16, load_data()))
    assert ridge(hopper, 989, 16) == pytest.approx(206, rel=0.01)


def test_between_measured_points_the_axis_doubles() -> None:
    points = [(1, 1.0), (4, 3.0)]
    assert interpolated(points, 2) == pytest.approx(2.0)
    assert interpolated(points, 0.5) == 1.0
    assert interpolated(points, 99) == 3.0


def test_every_card_has_its_arithmetic() -> None:
    assert set(load_data().cards.bf16_tflops) == {c.name for c in load_cards()}


def test_every_method_with_an_assumption_has_one_in_each_use() -> None:
    kinds = {frozenset(u.kept) for u in load_data().use}
    assert len(kinds) == 1


def test_every_use_has_a_workload_of_the_bench() -> None:
    from checks.bench.workloads import DOMAINS

    assert {w for u in load_data().use for w in u.workloads} <= {*DOMAINS, "code"}


# ---- own benches


def own(**more: Any) -> BenchResult:
    made = making.bench() | {"target": f"{LLAMA}@{'0' * 40}", "quantization": None} | more
    for s in made["strategies"]:
        s["draft"] = HEAD if s["strategy"] == "eagle3" else ""
    return BenchResult.from_json(json.dumps(made))


def test_an_own_bench_on_the_same_machine_is_taken_instead_of_estimates() -> None:
    a = advise(ask(gpus="RTX 4090", users="8", context="4096"), load, [own()])
    assert a.deployment.draft.num_speculative_tokens == 3
    assert a.gain == pytest.approx(1.9, abs=0.01)
    assert said(a, "gain at 8 at once").known == "measured"
    assert "invoke bench --host gpu01" in said(a, "gain at 8 at once").by
    assert a.off_above == 16


def test_a_bench_on_another_card_gives_its_acceptance_alone() -> None:
    a = advise(ask(gpus="H200", users="8"), load, [own()])
    assert said(a, "tokens a step").known == "measured"
    assert said(a, "gain at 8 at once").known == "estimated"


def test_a_bench_of_another_model_says_nothing() -> None:
    a = advise(ask(gpus="RTX 4090", users="8", context="4096"), load, [own(target="other/model")])
    assert said(a, "tokens a step").known == "assumed"


# ---- sizes


def test_more_users_take_more_cards_then_eight_bits_then_a_refusal() -> None:
    few = advise(ask(users="2", context="4096"), load).deployment
    many = advise(ask(users="12", context="32768"), load).deployment
    assert few.tensor_parallel == 1
    assert many.tensor_parallel == 4
    with pytest.raises(CheckRefused, match="do not fit 4x RTX 4090; with tensor_parallel 4") as caught:
        advise(ask(users="200", context="100000"), load)
    assert "--context" in caught.value.hint


def test_a_model_that_starts_on_no_card_is_refused() -> None:
    with pytest.raises(CheckRefused, match="does not start there"):
        advise(
            ask(gpus="T4", users="1", context="512"),
            lambda _: meta(LLAMA, making.CONFIG | {"num_hidden_layers": 200}),
        )


# ---- who could not look


@pytest.mark.parametrize("error", [HubUnreachable("down"), HubDenied("gated", slug="hf-unauthorized")])
def test_a_target_nobody_can_look_at_is_no_guess(error: Exception) -> None:
    def refuse(_: ModelRef) -> ModelMeta:
        raise error

    with pytest.raises(type(error)) as caught:
        advise(ask(), refuse)
    assert getattr(caught.value, "exit_code", None) == 3


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(RepoMissing) as caught:
        advise(ask(model="meta-llama/Llama-3.1-8B-Instuct"), load)
    assert LLAMA in caught.value.hint


# ---- words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"model": ""}, "no model"),
        ({"model": "nonsense"}, "nonsense"),
        ({"gpus": ""}, "no cards"),
        ({"gpus": "4x"}, "unknown card"),
        ({"gpus": "4x Voodoo 3"}, "unknown card 'Voodoo 3'"),
        ({"gpus": "0x RTX 4090"}, "0 cards"),
        ({"gpus": "9999x RTX 4090"}, "9999 cards"),
        ({"users": ""}, "--users"),
        ({"users": "0"}, "--users"),
        ({"users": "-3"}, "--users"),
        ({"users": "1e9"}, "--users"),
        ({"users": "٣"}, "--users"),
        ({"users": "9" * 5000}, "--users"),
        ({"use": ""}, "no use"),
        ({"use": "caht"}, "not one of"),
        ({"context": "much"}, "--context"),
        ({"engine": "ollama"}, "not known"),
    ],
)
def test_nonsense_is_usage(words: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ask(**words)


@pytest.mark.parametrize("text", ["4x RTX 4090", "4 x rtx 4090", "4×RTX 4090", "4*RTX 4090"])
def test_cards_are_read_as_people_write_them(text: str) -> None:
    q = ask(gpus=text)
    assert (q.card.name, q.count) == ("RTX 4090", 4)


# ---- what is printed and written


def test_what_is_written_loads_and_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(ask(), load, write="mine", as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["written"] == "inventory/deployments/mine.yml"
    assert all(set(x) == {"what", "value", "known", "by"} and x["by"] for x in told["lines"])
    d = load_deployment("mine")
    q = ask()
    planned = answer_for(d, gpus_of_card(q.card.name, q.card.memory_mib, q.count), Ask(), load)
    assert planned.exit_code == 0
    with pytest.raises(UsageError, match="exists"):
        answer(ask(), load, write="mine", as_json=True)


def test_a_name_that_is_none_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="name"):
        answer(ask(), load, write="../etc/x")
    assert list(tmp_path.iterdir()) == []


def test_people_see_the_same(capsys: Any) -> None:
    assert answer(ask(), load) == 0
    out = capsys.readouterr().out
    assert "passed over:" in out
    assert "--write NAME" in out
    assert out.count("0.25.1") == 1  # a source is printed once
