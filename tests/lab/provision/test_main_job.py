"""The main job on a lab host, with the stand-in engine and the hub's real client."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import ChangeFailed, InventoryError
from inventory.load import load_deployment
from inventory.model import Deployment
from provision import layout, reporting, ssh
from provision.observe import probe
from provision.run import Flags
from tests.lab.assets.purewheel import write_wheel
from tests.lab.provision.stage import Caller, CommandLines, Stage

pytestmark = pytest.mark.lab

#: Everything that a log, a lease or a clock changes by itself.
LISTING = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /tmp \
  -o -path /var/log/journal -o -path /var/lib/systemd/timers -o -path /var/cache/eyas-chat \
  -o -path /var/lib/eyas-chat \) -prune -o \
  \( -type f -o -type l -o -type d \) -printf '%p %y %s %T@ %m %u %l\n' |
  grep -Ev '^/(var/log/(wtmp|lastlog|btmp|auth.log)|var/lib/sudo|var/lib/systemd/random-seed) ' | sort
"""


def listing(stage: Stage) -> set[str]:
    return set(stage.sh(LISTING).splitlines())


def titles(report_changes: list[dict[str, object]]) -> str:
    return "\n".join(str(c["title"]) for c in report_changes)


def test_check_writes_nothing_on_a_fresh_host(stage: Stage) -> None:
    before = listing(stage)
    code, out, _ = stage.command(stage.deployment(), "--check", "--diff", "--json", "--detailed-exitcode")
    assert code == 8, out
    [host] = json.loads(out)["hosts"]
    assert host["status"] == "pending"
    assert len(host["changes"]) == 8
    assert host["changed"] == 0
    assert sorted(listing(stage) ^ before) == []


def test_a_fresh_host_serves_with_speculation(stage: Stage) -> None:
    report = stage.run(stage.deployment())
    assert (report.status, report.error) == ("changed", "")
    assert report.proof
    assert report.proof["acceptance_rate"] == pytest.approx(0.7, abs=0.05)
    assert stage.answers()
    used = {r.agent.split("/")[0] for r in stage.hub.requests("safetensors")}
    assert "unknown" in used or any("hf" in a or "hugging" in a for a in used), used
    assert stage.hub.requests("GET /files/vllm-")


def test_the_second_run_changes_nothing(stage: Stage) -> None:
    before = listing(stage)
    report = stage.run(stage.deployment())
    assert (report.status, report.changed, report.changes) == ("ok", 0, [])
    assert sorted(listing(stage) ^ before) == []


def test_a_report_of_the_live_host_shows_what_is_served(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out = listing(stage), tmp_path / "report.html"
    code = reporting.report([stage.host()], Flags(as_json=True), out=str(out))
    tree = json.loads(capsys.readouterr().out)
    assert code in {0, 4}, tree["findings"]
    [row] = tree["fleet"]
    assert (row["host"], row["deployment"], row["ready"]) == ("gpu01", "chat", True)
    assert row["acceptance"] == pytest.approx(0.7, abs=0.1)
    assert tree["absent"].keys() <= {"benches"}
    assert [g["gpu"] for g in tree["memory"]] == [0, 1]
    assert all(g["total_gib"] and g["used_gib"] is not None for g in tree["memory"])
    assert row["release"][:12] in out.read_text(encoding="utf-8")
    assert sorted(listing(stage) ^ before) == []


def test_check_writes_nothing_where_something_is_pending(stage: Stage) -> None:
    before = listing(stage)
    report = stage.run(stage.deployment("head-b"), check=True)
    assert report.status == "pending"
    assert "download eyas-lab/head-b" in titles(report.changes)
    assert "wheels from" not in titles(report.changes)
    assert sorted(listing(stage) ^ before) == []


def test_another_draft_is_another_release_and_the_way_back_is_short(stage: Stage) -> None:
    first = stage.current()
    report = stage.run(stage.deployment("head-b"))
    assert report.changed == 4, titles(report.changes)
    assert stage.current() == report.release != first
    back = stage.run(stage.deployment())
    assert stage.current() == back.release == first
    assert (
        titles(back.changes)
        == f"serve release {first} (now: {report.release})\nproof: streamed requests, speed, acceptance"
    )


def test_lossless_is_judged_by_a_run_without_speculation(stage: Stage) -> None:
    assert stage.run(stage.deployment(None)).status == "changed"
    report = stage.run(stage.deployment())
    assert report.proof
    assert report.proof["lossless"] is True


@pytest.mark.parametrize(
    ("break_it", "title"),
    [
        ("echo Nice=5 >>/etc/systemd/system/eyas-chat.service", "unit files were changed by hand"),
        ("systemctl stop eyas-chat", "not active"),
        ("systemctl disable -q eyas-chat", "not enabled"),
        ("systemctl stop eyas-chat-health.timer", "health timer off"),
        (
            "systemctl set-property eyas-chat CPUWeight=50",
            "drop-in",
        ),
        (
            "truncate -s 100000 /var/lib/eyas/weights/eyas-lab--target-*/*/model.safetensors",
            "download eyas-lab/target",
        ),
        ("rm /var/lib/eyas/weights/eyas-lab--head-*/*/config.json", "download eyas-lab/head"),
        ("rm -r /opt/eyas/uv /opt/eyas/envs/*/eyas-proof.json", "environment"),
        ("rm /var/lib/eyas/releases/*/release.json", "release"),
    ],
)
def test_drift_is_seen_and_mended(stage: Stage, break_it: str, title: str) -> None:
    stage.sh(break_it)
    report = stage.run(stage.deployment())
    assert (report.status, report.error) == ("changed", "")
    assert title in titles(report.changes)
    assert titles(stage.run(stage.deployment()).changes) == ""
    assert stage.answers()


def test_an_environment_that_lost_its_proof_is_rebuilt_beside_what_serves(stage: Stage) -> None:
    started = stage.sh("systemctl show -P ActiveEnterTimestampMonotonic eyas-chat")
    stage.sh(
        "rm /opt/eyas/envs/*/eyas-proof.json; echo 'left = 1' >$(echo /opt/eyas/envs/*/lib/python3*)/torn.py"
    )
    with Caller(stage) as caller:
        report = stage.run(stage.deployment())
        caller.answered()
    assert (report.status, report.changed) == ("changed", 1), report.error
    assert stage.sh("systemctl show -P ActiveEnterTimestampMonotonic eyas-chat") == started
    assert stage.sh("ls -A /opt/eyas/envs; ls /opt/eyas/envs/*/lib/python3*") == (
        f"{stage.standin.lock.id[:16]}\nsite-packages"
    )
    stage.sh("systemctl restart eyas-chat")
    assert stage.answers()


# ---- secrets

KEY, TOKEN = "canary-key-7f3a", "canary-token-91bc"


@pytest.fixture
def canaries(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setenv("LAB_KEY", KEY)
    monkeypatch.setenv("LAB_TOKEN", TOKEN)
    stage.hub.access.tokens = {TOKEN: "me"}
    stage.hub.access.gated = {"eyas-lab/head-b": ["me"]}
    yield stage.deployment("head-b", api_key="env:LAB_KEY", hub_token="env:LAB_TOKEN", host="0.0.0.0")
    stage.hub.access.tokens = {}
    stage.hub.access.gated = {}


def test_secrets_appear_nowhere(stage: Stage, canaries: Deployment) -> None:
    stage.sh("rm -rf /var/lib/eyas/weights/eyas-lab--head-b-*")
    stage.hub.faults.add("/lfs/.*head-b", rate=30000)
    with CommandLines(KEY, TOKEN) as lines:
        texts = [*stage.command(canaries, "--json", "--diff")[1:], *stage.command(canaries, "--diff")[1:]]
        stage.run(canaries, check=True)
    assert lines.found == set()
    assert any(line.startswith("/opt/eyas/") for line in lines.seen), lines.seen
    with ssh.connect(stage.host(), ssh.SshOptions()) as shell:
        texts.append(json.dumps(probe(shell, ["chat"]).tree))
    assert '"exit_code": 0' in texts[0], texts
    journals = [file.read_text() for file in stage.folder.rglob("*.jsonl")]
    assert journals
    for shown in (*texts, *journals):
        assert "canary" not in shown
    found = stage.sh(
        "cd /; ls | grep -Ev '^(proc|sys|dev|run)$' | xargs grep -rl canary- 2>/dev/null | sed s,^,/, || true"
    )
    assert re.fullmatch(r"/etc/eyas/credentials/chat/api-key-[0-9a-f]{16}", found), found
    assert stage.sh(f"stat -c '%a %U' {found}") == "600 root"
    assert "canary" not in stage.sh("journalctl --no-pager; systemctl show eyas-chat; ps auxe | grep -v VLLM")


def test_the_key_is_asked_for_and_an_older_one_comes_back(
    stage: Stage, canaries: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stage.run(canaries).exit_code == 0
    assert not stage.answers()
    assert stage.answers(key=KEY)
    first = stage.current()
    monkeypatch.setenv("LAB_KEY", "canary-other")
    assert stage.run(canaries).status == "changed"
    assert stage.answers(key="canary-other")
    assert not stage.answers(key=KEY)
    monkeypatch.setenv("LAB_KEY", KEY)
    assert stage.run(canaries).status == "changed"
    assert stage.current() == first
    assert stage.answers(key=KEY)
    assert stage.run(canaries).status == "ok"
    assert stage.run(stage.deployment()).status == "changed"


def test_an_open_address_without_a_key_is_no_deployment(stage: Stage) -> None:
    with pytest.raises(ValueError, match="not loopback"):
        stage.deployment(host="0.0.0.0")
    path = stage.write(stage.deployment())
    path.write_text(path.read_text() + "host: 0.0.0.0\n")
    with pytest.raises(InventoryError, match="not loopback"):
        load_deployment(path)


# ---- wheels


def test_pushed_wheels_and_a_tampered_one(stage: Stage, tmp_path: Path) -> None:
    d = stage.deployment(wheels_from="push")
    house = tmp_path / "house"
    house.mkdir()
    for wheel in stage.standin.dir.glob("*.whl"):
        (house / wheel.name).write_bytes(wheel.read_bytes())
    write_wheel(house, "torch", stage.standin.lock.packages["torch"], {"torch/__init__.py": b"evil = 1\n"})
    stage.sh("rm -rf /opt/eyas/envs/*/eyas-proof.json")
    from provision.sources import Sources

    report = stage.run(d, sources=Sources(wheelhouse=house))
    assert report.exit_code == 5
    assert "hash mismatch" in report.error.lower(), report.error
    assert "not the locked one" in report.hint
    assert stage.current()
    report = stage.run(d)
    assert (report.status, report.error) == ("changed", "")
    assert "pushed wheels" in titles(report.changes)
    assert not stage.sh("ls /opt/eyas/wheelhouse")
    assert stage.answers()


def test_a_missing_system_library_is_named_with_its_package(stage: Stage) -> None:
    from dataclasses import replace

    from provision import environment

    lock = stage.standin.lock
    want = environment.EnvWant(
        lock_id=lock.id, lock_text=lock.text, versions=dict(lock.packages), imports=("torch", "vllm"),
        cuda="13.0", python="/usr/bin/python3", uv_binary=Path("/x"), uv_version="0",
        libraries={"libnothere.so.1": "libnothere1"},
    )  # fmt: skip
    with ssh.connect(stage.host(), ssh.SshOptions()) as shell:
        env = layout.env_dir(lock.id)
        with pytest.raises(ChangeFailed, match=r"libnothere\.so\.1") as caught:
            environment._prove(shell, want, env)
        assert "apt-get install -y libnothere1" in caught.value.hint
        wrong = replace(want, libraries={}, cuda="12.8", versions={**want.versions, "tqdm": "1.0"})
        with pytest.raises(ChangeFailed, match=r"tqdm .* instead of 1.0; .*CUDA 13.0, wanted 12.8"):
            environment._prove(shell, wrong, env)
