"""Against an engine whose acceptance and step time are settings: what was set comes back.

The stand-in's speed is a schedule, so what a bench measures is known beforehand.
"""

import pytest

from checks.bench.model import BenchResult
from inventory.model import Deployment, Draft
from tests.lab.bench.conftest import Bench
from tests.lab.provision.stage import Stage, eventually

pytestmark = pytest.mark.lab

SPEED = 40.0  # tokens a second of one stream without speculation
K = 4
#: With these the model's speedup is 1.08 at 16 at once and 0.94 at 32: (1 + K * SHARE) times the plain
#: step over the drafted one (tests/lab/engine/vllm/core.py, step_seconds).
SHARE = 0.22
WORDS = ("--prompt-tokens", "150", "--output-tokens", "48", "--yes")


def deployment(stage: Stage) -> Deployment:
    draft = Draft(method="eagle3", model=stage.model("head"), num_speculative_tokens=K)
    return stage.deployment(max_model_len=2048).model_copy(update={"draft": draft})


def step_ms(concurrency: int, k: int) -> float:
    rows = concurrency * (k + 1) - 1
    return 1000 * ((1.42 if k else 1.0) + rows / 160) / SPEED


def test_what_was_set_comes_back_and_the_crossover_is_found(stage: Stage, bench: Bench) -> None:
    stage.engine({"tokens_per_s": SPEED, "acceptance": SHARE, "prefill_tokens_per_s": 1e6})
    d = deployment(stage)
    assert stage.run(d).exit_code == 0
    served = stage.current()
    words = ("--compare", "none,eagle3", "--no-tune", "--concurrency", "2,16,32", "--repeats", "3")
    told = bench.run(d, *words, *WORDS)
    result = BenchResult.model_validate(told["results"][0])
    plain, drafted = result.run("none"), result.run("eagle3")
    assert plain
    assert drafted
    for run, k in ((plain, 0), (drafted, K)):
        for c in (2, 16, 32):
            cell = run.cell("code", c)
            assert cell
            assert cell.step_ms
            assert cell.step_ms.median == pytest.approx(step_ms(c, k), rel=0.03), (k, c)
            assert cell.prompt_tokens == pytest.approx(150, rel=0.06)
            assert cell.output_tokens == 48
            if k:
                assert cell.acceptance
                assert cell.acceptance.rate == pytest.approx(SHARE, rel=0.03), c
    assert result.verdict
    assert (result.verdict.strategy, result.verdict.off_above) == ("eagle3", 16)
    assert drafted.lossless
    assert drafted.lossless.same
    assert (drafted.kv_tokens or 0) < (plain.kv_tokens or 0)
    assert stage.current() == served
    assert stage.answers()
    assert not stage.sh("ls /var/lib/eyas/bench /etc/systemd/system | grep -e putback -e chat.json || true")


def test_a_killed_operator_leaves_what_served(stage: Stage, bench: Bench) -> None:
    d = deployment(stage)
    assert stage.run(d).exit_code == 0
    served = stage.current()
    operator = bench.start(d, "--compare", "none,ngram,eagle3", "--concurrency", "4", *WORDS)
    operator.says("none: code at 4")
    assert stage.current() != served
    operator.kill()
    operator.finish()
    eventually(lambda: stage.current() == served and stage.answers(), within=40, what="what served before")
    left = "ls /var/lib/eyas/bench/chat.json 2>/dev/null; pgrep -f [l]ib/bench/bench.py || true"
    eventually(lambda: not stage.sh(left), within=20, what="the end of the way back")
    assert stage.run(d).status == "ok"
