"""The service by itself: killed, hung, slow, stopped in the middle; what the unit lets it do."""

import json
import re

import pytest

from provision import release
from tests.lab.provision.stage import Stage, eventually

pytestmark = pytest.mark.lab
CORE = "pgrep -o -f 'VLLM::EngineCor' || pgrep -o VLLM::EngineCor"


def serving(stage: Stage) -> None:
    stage.engine()
    stage.sh("systemctl reset-failed eyas-chat 2>/dev/null || true")
    report = stage.run(stage.deployment())
    assert report.exit_code == 0, report.error
    assert stage.answers()


def impatient(stage: Stage) -> None:
    """Let the supervisor of the served release wait less: seconds instead of minutes."""
    serving(stage)
    path = f"/var/lib/eyas/releases/{stage.current()}/release.json"
    told = json.loads(stage.sh(f"cat {path}"))
    told["timeouts"] |= {"probe_s": 2, "probe_every_s": 2, "hang_s": 3}
    stage.on().write(path, json.dumps(told))
    stage.sh("systemctl reset-failed eyas-chat; systemctl restart eyas-chat")


def back(stage: Stage, before: int) -> None:
    eventually(
        lambda: stage.restarts() > before and stage.answers(), within=60, what="the service, restarted"
    )


def test_a_dead_worker_and_a_dead_server_come_back(stage: Stage) -> None:
    serving(stage)
    for victim in ("VLLM::Worker", "VLLM::EngineCor"):
        before = stage.restarts()
        stage.sh(f"pkill -KILL '{victim}'")
        back(stage, before)
    before = stage.restarts()
    stage.sh("kill -KILL $(systemctl show -P MainPID eyas-chat)")
    back(stage, before)
    assert stage.sh("systemctl show -P Result eyas-chat") == "success"


def test_a_stopped_core_is_noticed(stage: Stage) -> None:
    impatient(stage)
    before = stage.restarts()
    stage.sh("pkill -STOP VLLM::EngineCor")
    back(stage, before)
    assert "hung for" in stage.sh("journalctl -u eyas-chat --no-pager -o cat")


def test_an_engine_that_hangs_with_requests_is_noticed(stage: Stage) -> None:
    impatient(stage)
    before = stage.restarts()
    stage.engine({"fault": "hang"})
    eventually(lambda: stage.restarts() > before, within=60, what="a restart")
    stage.engine()
    eventually(stage.answers, within=60, what="the service")


def test_drafts_that_stop_moving_fail_the_health_check(stage: Stage) -> None:
    serving(stage)
    stage.sh("systemctl start eyas-chat-health.service")
    path = f"/var/lib/eyas/releases/{stage.current()}/release.json"
    text = stage.sh(f"cat {path}")
    # The engine keeps no such series: the same as one whose drafts stand still.
    told = json.loads(text)
    told["metrics"]["spec_draft_tokens"] = "vllm:no_such_series"
    stage.on().write(path, json.dumps(told))
    try:
        assert stage.on().run(["systemctl", "start", "eyas-chat-health.service"], check=False).returncode
        assert "no draft token was made" in stage.sh("journalctl -u eyas-chat-health --no-pager -o cat")
    finally:
        stage.on().write(path, text)
    stage.sh("systemctl start eyas-chat-health.service")


def test_stopping_while_it_starts_and_a_slow_start(stage: Stage) -> None:
    serving(stage)
    stage.engine({"start_s": 8})
    stage.sh("systemctl restart --no-block eyas-chat")
    eventually(lambda: stage.sh("pgrep VLLM::EngineCor || true"), within=10, what="a starting engine")
    stage.sh("systemctl stop eyas-chat", timeout=40)
    assert stage.sh("pgrep VLLM || true") == ""
    assert stage.sh("systemctl show -P Result eyas-chat") == "success"
    stage.sh("systemctl start eyas-chat")
    assert stage.answers()
    ready = re.findall(r"ready after ([\d.]+) s", stage.sh("journalctl -u eyas-chat --no-pager -o cat"))
    assert float(ready[-1]) > 8


def test_shared_memory_of_a_killed_run_is_gone(stage: Stage) -> None:
    stage.engine()
    assert stage.run(stage.deployment(tensor_parallel=2)).exit_code == 0
    before = stage.restarts()
    stage.sh("pkill -KILL VLLM::EngineCor")
    back(stage, before)
    stage.sh("systemctl stop eyas-chat")
    assert stage.sh("ls /dev/shm | grep vllm || true") == ""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("key", ["", "env:LAB_KEY"])
def test_the_unit_is_sound_and_closed(
    stage: Stage, device: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", "k" * 20)
    d = stage.deployment(device=device, api_key=key or None)
    served = release.Served(
        argv=("/bin/true",), env={}, engine_version="0.33.0", lock_id="0", lock_name="x", weights={},
        model_bytes=1, metrics={}, api_key_env=(), api_key_digest="ab" * 16 if key else None,
    )  # fmt: skip
    folder = f"/tmp/units-{device}-{bool(key)}"
    for name, data in release.make_release(d, served).units.items():
        stage.sh(f"mkdir -p {folder}")
        stage.on().write(f"{folder}/{name}", data.decode())
    done = stage.on().run(
        ["sh", "-c", f"systemd-analyze verify --man=no {folder}/*.service {folder}/*.timer"], check=False
    )
    assert (done.returncode, [x for x in done.stderr.splitlines() if "eyas" in x]) == (0, [])
    for unit in ("eyas-chat", "eyas-chat-health"):
        shown = stage.sh(
            f"systemd-analyze security --no-pager --offline=true --threshold=20 {folder}/{unit}.service"
        )
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", shown)
        assert found
        assert float(found[1]) <= 2.0, shown
