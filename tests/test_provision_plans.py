"""Plans from facts and wish alone, and the host's small programs, without a host."""

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import InventoryError
from inventory.model import Deployment, ModelRef
from provision import layout, weights
from provision.programs import FOLDER
from provision.release import ReleaseWant, Served, make_release, plan_release, secret_digest
from provision.service import ServiceState, plan_switch
from provision.weights import NEXT_STEP, FileSpec, Manifest, manifest_of, plan_weights

GOOD = ServiceState("r1", units_equal=True, active=True, enabled=True, timer_active=True)
FETCH = runpy.run_path(str(FOLDER / "fetch.py"), run_name="eyas_fetch")


def deployment(**changes: Any) -> Deployment:
    return Deployment(**{"name": "chat", "engine": "vllm", "target": ModelRef(repo="a/b"), **changes})


def release(**changes: Any) -> ReleaseWant:
    served = Served(
        argv=("/bin/true",), env={}, engine_version="1", lock_id="0", lock_name="x", weights={},
        model_bytes=1, metrics={}, api_key_env=(), api_key_digest=None,
    )  # fmt: skip
    d = deployment(**{k: v for k, v in changes.items() if k != "digest"})
    return make_release(d, Served(**{**vars(served), "api_key_digest": changes.get("digest")}))


@pytest.mark.parametrize(
    ("state", "title"),
    [
        ({}, None),
        ({"active": False}, "restart eyas-chat (not active)"),
        ({"enabled": False, "timer_active": False}, "restart eyas-chat (not enabled, health timer off)"),
        ({"drop_ins": True}, "restart eyas-chat (drop-ins of others, which go to /var/lib/eyas/set-aside)"),
        ({"units_equal": False}, "restart eyas-chat (its unit files were changed by hand)"),
        ({"current": "r0"}, "serve release r1 (now: r0)"),
        ({"current": None, "active": False}, "serve release r1 (now: nothing)"),
    ],
)
def test_a_switch_is_planned_only_where_something_differs(state: dict[str, Any], title: str | None) -> None:
    want = ReleaseWant("chat", "r1", {}, {}, 900)
    found = plan_switch(want, ServiceState(**{**vars(GOOD), **state}), lambda _: ("", ()))
    assert [c.title for c in found] == ([title] if title else [])
    assert all(c.disruptive for c in found)


def test_a_release_is_named_by_what_it_serves() -> None:
    one = release()
    assert one.id == release().id
    assert one.id == release(wheels_from="push", weights_from="push").id, "where things came from is no part"
    assert len({one.id, release(port=8001).id, release(digest="ab" * 16, api_key="env:K").id}) == 3
    assert plan_release(one, {one.id}, print) == []
    [change] = plan_release(one, set(), print)
    assert "release.json" in change.diff


def test_each_key_has_a_file_of_its_own_and_its_value_is_nowhere() -> None:
    digest = secret_digest("canary", "chat")
    assert digest
    made = release(digest=digest, api_key="env:K")
    assert layout.api_key_path("chat", digest).encode() in made.units["eyas-chat.service"]
    assert not any(b"canary" in data for data in made.files.values())
    assert layout.api_key_path("chat", digest) != layout.api_key_path("chat", str(secret_digest("x", "chat")))


def test_weights_that_are_there_are_not_planned_and_a_shared_folder_once() -> None:
    one = Manifest(ModelRef(repo="a/b"), "0" * 40, (FileSpec("x", 1),))
    other = Manifest(ModelRef(repo="a/c"), "1" * 40, (FileSpec("x", 1),))
    options: dict[str, Any] = {"python": "p", "endpoint": None, "token": None, "push": False, "say": print}
    titles = [c.title for c in plan_weights([one, one, other], {other.folder}, **options)]
    assert titles == ["download a/b@000000000000 (1 files, 0.00 GB)"]


# ---- the host's programs


def whole(size: int = 8) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n"
SHARDS: dict[str, tuple[bytes, str]] = {
    "whole": (whole(), ""),
    "no tensors": ((2).to_bytes(8, "little") + b"{}", ""),
    "pointer": (POINTER, "pointer"),
    "cut": (whole()[:-1], "truncated"),
    "too long": (whole() + b"x", "truncated"),
    "empty": (b"", "truncated"),
    "a web page": (b"<html>not found</html>" * 20, "truncated"),
    "header is a list": ((2).to_bytes(8, "little") + b"[]", "truncated"),
    "header of a petabyte": ((1 << 50).to_bytes(8, "little") + b"{}", "truncated"),
    "tensor without offsets": ((9).to_bytes(8, "little") + b'{"w":{}}\n', "truncated"),
}


@pytest.mark.parametrize("case", SHARDS)
def test_a_shard_that_is_no_shard(case: str, tmp_path: Path) -> None:
    data, kind = SHARDS[case]
    (tmp_path / "model.safetensors").write_bytes(data)
    assert FETCH["unusable"](tmp_path / "model.safetensors") == kind


@pytest.mark.parametrize("case", ["pointer", "cut"])
def test_a_local_model_that_is_not_whole_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(SHARDS[case][0])
    with pytest.raises(InventoryError, match=r"model\.safetensors") as caught:
        manifest_of(ModelRef(path=str(tmp_path)), endpoint=None, token=None)
    assert caught.value.hint == NEXT_STEP[SHARDS[case][1]]


def test_every_word_of_the_fetch_program_has_a_next_step() -> None:
    text = (FOLDER / "fetch.py").read_text()
    assert set(FETCH["TOLD"]) <= set(weights.NEXT_STEP)
    for kind in ("disk-full", "corrupt", "network", "filesystem", "bad-token", "forbidden", "rate-limited"):
        assert f'"{kind}"' in text
        assert kind in NEXT_STEP


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Any]:
    """Starts holders of one lock; ``start(who)`` gives the process after its first line."""
    argv = [
        sys.executable,
        str(FOLDER / "hold_lock.py"),
        str(tmp_path / "flock"),
        str(tmp_path / "owner.json"),
    ]
    started: list[subprocess.Popen[str]] = []

    def start(who: str) -> tuple[subprocess.Popen[str], str]:
        p = subprocess.Popen(
            [*argv, who, "30", str(tmp_path / "work")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(p)
        assert p.stdout
        return p, p.stdout.readline().strip()

    yield start
    for p in started:
        p.kill()
        p.communicate()


@pytest.mark.process
def test_one_operator_at_a_time_and_a_gone_one_holds_nothing(lock: Any) -> None:
    first, said = lock("me")
    assert said == "mine"
    second, said = lock("you")
    assert said == "held me"
    assert second.wait(5) == 75
    first.stdin.close()
    assert first.wait(5) == 0
    first.stdin = None
    third, said = lock("third")
    assert said == "mine"
    third.kill()
    third.wait()
    assert lock("fourth")[1] == "mine"


@pytest.mark.process
def test_work_of_an_operator_that_is_gone_is_ended(lock: Any, tmp_path: Path) -> None:
    program = "import sys, time; f = open(sys.argv[1], 'ab'); print('on', flush=True); time.sleep(60)"
    work = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "work")], stdout=subprocess.PIPE, text=True
    )
    with work:
        assert work.stdout
        assert work.stdout.readline() == "on\n"
        assert lock("me")[1] == "mine"
        assert work.wait(5) == -9
