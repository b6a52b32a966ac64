"""Against an engine whose acceptance and step time are settings: what was set comes back.

The stand-in's speed is a schedule, so what a bench measures is known beforehand.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from checks.bench.model import BenchResult
from inventory.model import Deployment, Draft
from tests.lab.bench.conftest import ROOT, Bench
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
    assert plain.gpu_memory_mib is not None, plain.missing
    assert stage.current() == served
    assert stage.answers()
    assert not stage.sh("ls /var/lib/eyas/bench /etc/systemd/system | grep -e putback -e chat.json || true")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_operator_leaves_what_served(stage: Stage, bench: Bench, number: int) -> None:
    d = deployment(stage)
    assert stage.run(d).exit_code == 0
    served = stage.current()
    operator = bench.start(d, "--compare", "none,ngram,eagle3", "--concurrency", "4", *WORDS)
    operator.says("none: code at 4")
    assert stage.current() != served
    operator.kill(number)
    code, _, said = operator.finish()
    if number == signal.SIGINT:  # put back before it ended
        assert (code, stage.current()) == (130, served), said
        assert "putting back what served before" in said
    eventually(lambda: stage.current() == served and stage.answers(), within=40, what="what served before")
    left = "ls /var/lib/eyas/bench/chat.json 2>/dev/null; pgrep -f [l]ib/bench/bench.py || true"
    eventually(lambda: not stage.sh(left), within=20, what="the end of the way back")
    assert stage.run(d).status == "ok"


def command(stage: Stage, *words: str) -> tuple[int, str, str]:
    """Another task of the command line in a process of its own."""
    argv = [sys.executable, "-c", "from tasks import main; main()", *words]
    argv += ["--inventory", str(stage.folder / "hosts.yml")]
    env = {**os.environ, "HF_ENDPOINT": stage.hub.url, "XDG_STATE_HOME": str(stage.folder / "state")}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_tenth_slower_than_its_baseline_is_seen_by_bench_review_and_doctor(
    stage: Stage, bench: Bench
) -> None:
    quick = {"tokens_per_s": 150.0, "acceptance": 0.6}
    stage.engine(quick)
    d = deployment(stage)
    assert stage.run(d).exit_code == 0
    stage.sh(f"rm -f /var/lib/eyas/releases/{stage.current()}/proof.json")
    assert stage.run(d).exit_code == 0  # proven at this speed
    stage.engine(quick | {"tokens_per_s": 148.5})
    told = bench.run(d, "--against", "baseline")["against_baseline"][0]
    assert told["answer"] == "pass", told["text"]

    folder = "/var/lib/prometheus/node-exporter"
    stage.sh(f"mkdir -p {folder}")
    words = ("--host", "gpu01", "--deployment", str(stage.write(d)))
    code, out, said = command(stage, "review", "--install", "--now", *words, "--json")
    assert code == 0, said
    assert json.loads(out)["hosts"][0]["changed"]
    page = stage.sh(f"cat {folder}/eyas_chat.prom")
    samples = {s.name: s.value for f in text_string_to_metric_families(page + "\n") for s in f.samples}
    assert samples["eyas_review_tokens_per_second"] == pytest.approx(
        samples["eyas_baseline_tokens_per_second"], rel=0.05
    )
    assert samples["eyas_review_acceptance_ratio"] == pytest.approx(0.6, rel=0.1)
    latest = json.loads(stage.sh("cat /var/lib/eyas/review/chat/latest.json"))
    # A lab host may not raise its limits: that this is seen shows that it was looked at.
    assert set(latest["differences"]) <= {"limits"}
    assert latest["unseen"] == {}
    assert samples["eyas_review_differences"] == len(latest["differences"])
    assert "eyas review: chat: " in stage.sh("journalctl -u review-eyas-chat -o cat --no-pager")
    assert stage.sh("systemctl is-enabled review-eyas-chat.timer") == "enabled"
    assert "security" not in stage.sh(
        "systemd-analyze security --no-pager --offline=true --threshold=40"
        " /etc/systemd/system/review-eyas-chat.service >/dev/null || echo security"
    )
    code, out, _ = command(stage, "review", "--limit", "gpu01", "--json")
    assert code == 0
    assert json.loads(out)["hosts"][0]["reviews"][0]["answer"] == "pass"

    stage.engine(quick | {"tokens_per_s": 135.0})
    told = bench.run(d, "--against", "baseline", code=4)["against_baseline"][0]
    assert told["answer"] == "fail", told["text"]
    stage.sh("systemctl start review-eyas-chat.service")
    code, out, _ = command(stage, "review", "--limit", "gpu01")
    assert code == 4
    assert "chat: fail: tokens/s" in out
    code, out, _ = command(stage, "doctor", "--host", "gpu01", "--json")
    assert "speed-dropped" in {f["slug"] for f in json.loads(out)["findings"]}
    assert stage.run(d).status == "ok", "a review is no drift"

    code, _, said = command(stage, "review", "--remove", *words)
    assert code == 0, said
    assert not stage.sh(f"ls {folder} /etc/systemd/system | grep -e review -e eyas_ || true")
    assert stage.sh("wc -l </var/lib/eyas/review/chat/history.jsonl") == "2"
