"""A comparison's course without a host: what is served in which order, tuning, and what a failure leaves."""

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from checks.bench.verdict import decide
from checks.bench.workloads import workload
from checks.facts import HostFacts
from inventory.errors import ChangeFailed, HostUnreachable
from inventory.model import Deployment, Draft, ModelRef
from provision.bench import compare
from provision.bench.command import _stoppable, _Stopped
from provision.bench.found import Bench, estimates_of, runs_of, speedups_of
from provision.bench.measure import Asked, Measured, _lengths
from provision.bench.serving import named
from provision.converge import Options
from tests.bench.made import a_round, run_of

HEAD = Draft(method="eagle3", model=ModelRef(repo="a/head"), num_speculative_tokens=4)
D = Deployment(name="chat", engine="vllm", target=ModelRef(repo="a/b"), draft=HEAD)
KEPT = (0.7, 0.35, 0.1, 0.02)


class Play:
    """A host whose engine takes 10 ms a step and ``cost`` of that for each drafted token."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, cost: float = 0.2, fails: str = "") -> None:
        self.cost, self.fails = cost, fails
        self.served: list[str] = []
        self.said: list[str] = []
        self.bench = Bench(
            shell=SimpleNamespace(host=SimpleNamespace(name="gpu01")),
            deployment=D,
            asked=Asked((workload("chat"),), concurrency=(1,), prompt_tokens=9, output_tokens=9),
            options=Options(),
            say=self.said.append,
            facts=HostFacts("gpu01", 0.0, {}),
            current="eagle3-4",
        )
        monkeypatch.setattr(compare, "want_for", self._want)
        monkeypatch.setattr(compare, "host_lock", lambda *_: contextlib.nullcontext())
        monkeypatch.setattr(compare, "serving_others", self._others)
        monkeypatch.setattr(compare, "plan_changes", lambda *_: [])
        monkeypatch.setattr(compare, "look", lambda *_: None)
        monkeypatch.setattr(compare, "_link", lambda *_: "")
        monkeypatch.setattr(compare, "activate", self._activate)
        monkeypatch.setattr(compare, "measure_served", self._measure)

    def run(self, *strategies: Any, tune: bool = True) -> None:
        compare.compare_strategies(self.bench, compare.Compare(strategies, tune=tune))

    def _want(self, _host: Any, d: Deployment, *_: Any) -> Any:
        rid = f"{d.draft.method}-{d.draft.num_speculative_tokens}"
        return SimpleNamespace(deployment=d, release=SimpleNamespace(id=rid, timeout_start_s=9))

    @contextlib.contextmanager
    def _others(self, _shell: Any, _name: str, release: str, *_: Any) -> Iterator[None]:
        try:
            yield
        finally:
            self.served.append(f"back {release}")

    def _activate(self, _shell: Any, _name: str, release: str, *_: Any, **words: Any) -> None:
        assert words["bench"]
        self.served.append(release)
        if release == self.fails:
            raise ChangeFailed("out of memory", host="gpu01")

    def _measure(self, b: Bench, want: Any) -> None:
        k = want.deployment.draft.num_speculative_tokens
        kept = KEPT[:k] if k else ()
        step = 0.010 * (1 + self.cost * (k or 0))
        run = named(want.deployment, want)
        b.runs.append(run.model_copy(update={"cells": run_of(run.strategy, {1: step}, k, kept).cells}))
        totals = [a_round(step, accepted=kept).tokens_per_s(1) * f for f in (0.999, 1.0, 1.001)]
        b.found[run.label] = Measured(totals={("code", 1): totals}, alone=("a",), in_batch=("a",))


def test_the_best_length_is_served_and_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch)
    play.run("none", "eagle3")
    assert play.served == ["none-None", "eagle3-4", "eagle3-2", "back eagle3-4"]
    verdict = decide(play.bench.runs, speedups_of(play.bench))
    assert verdict
    assert (verdict.strategy, verdict.num_speculative_tokens) == ("eagle3", 2)
    told = {e.num_speculative_tokens: e for e in estimates_of(play.bench)}
    assert told[2].measured
    assert not told[3].measured
    assert [r.lossless.same for r in runs_of(play.bench) if r.lossless] == [True, True]


def test_without_tuning_each_is_served_once_and_the_present_one_last(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch)
    play.run("none", "eagle3", "ngram", tune=False)
    assert play.served == ["none-None", "ngram-4", "eagle3-4", "back eagle3-4"]
    assert [r.strategy for r in play.bench.runs] == ["none", "eagle3", "ngram"]


def test_what_does_not_start_is_a_result_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch, fails="ngram-4")
    play.run("none", "ngram", "eagle3", tune=False)
    assert {r.strategy: r.error for r in play.bench.runs} == {
        "none": "",
        "ngram": "out of memory",
        "eagle3": "",
    }
    assert play.served[-1] == "back eagle3-4"


def test_where_none_pays_a_shorter_draft_may(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch, cost=0.5)
    play.run("none", "eagle3")
    assert "eagle3-1" in play.served
    verdict = decide(play.bench.runs, speedups_of(play.bench))
    assert verdict
    assert (verdict.strategy, verdict.num_speculative_tokens) == ("eagle3", 1)


def test_a_lost_link_ends_it_and_the_way_back_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch)

    def lost(*_: Any, **__: Any) -> None:
        raise HostUnreachable("gone", host="gpu01")

    monkeypatch.setattr(compare, "activate", lost)
    with pytest.raises(HostUnreachable):
        play.run("none", "eagle3")
    assert play.served == ["back eagle3-4"]


def test_a_stop_from_the_terminal_is_no_result_of_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    play, stop = Play(monkeypatch), threading.Event()
    play.bench.say = _stoppable(play.said.append, stop)
    stop.set()
    with pytest.raises(_Stopped):
        play.run("none", "eagle3")
    assert play.served == ["back eagle3-4"]
    play.bench.say("putting back")  # only the first line after the stop raises
    assert play.said[-1] == "putting back"


@pytest.mark.parametrize("longest", [None, 2000])
def test_lengths_that_fit_stay(longest: int | None) -> None:
    asked = Asked(workloads=(), concurrency=(1,), prompt_tokens=1200, output_tokens=600)
    assert _lengths(asked, longest) == (1200, 600, ())


def test_lengths_shrink_with_the_context_and_say_so() -> None:
    asked = Asked(workloads=(), concurrency=(1,), prompt_tokens=1200, output_tokens=600)
    prompt, output, notes = _lengths(asked, 512)
    assert prompt * 1.05 + output <= 512 - 16
    assert "max_model_len 512" in notes[0]
