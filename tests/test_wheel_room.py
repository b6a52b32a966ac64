"""Room on the host for an environment and, where wheels come as files, for those beside it."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.facts import HostFacts
from checks.preconditions import Want as HostWant
from checks.preconditions import run_preconditions, verdict
from inventory.locks import find_lock
from inventory.model import Deployment, Host, ModelRef
from provision import layout
from provision.want import Sources, want_for
from provision.wheelroom import COMPILED, INSTALLED_PER_WHEEL_BYTE
from tests.lab.provision.stage import write_model

LOCK = find_lock("vllm-0.33.0-cu130-cp312")
SIZE = LOCK.download_bytes or 0
GIB = 1 << 30
H200 = HostFacts.load(Path(__file__).parent / "hosts/h200x2-580.json")


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a host must be like for this way of the wheels to it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = write_model(tmp_path / "model")

    def want(wheels_from: Any, *, facts: HostFacts = H200, **sources: Any) -> HostWant:
        d = Deployment(
            name="chat",
            engine="vllm",
            engine_version="0.33.0",
            target=ModelRef(path=str(model)),
            wheels_from=wheels_from,
        )
        return want_for(Host(name="h", address="h"), d, facts, Sources(**sources), lambda _: None).host

    return want


@pytest.fixture
def room(wanted: Any) -> Any:
    """Of that, what is counted below /opt/eyas."""
    return lambda *words, **sources: dict(wanted(*words, **sources).disk[layout.ROOT])


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A folder with a wheel of 1,000 bytes that holds 50,000."""
    folder = tmp_path / "house"
    folder.mkdir()
    with zipfile.ZipFile(folder / "a-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a.py", b"0" * 50_000)
    return folder


def test_the_shipped_locks_tell_what_they_download() -> None:
    assert 3e9 < SIZE < 6e9


def test_from_the_hosts_index_only_the_environment_lies_there(room: Any) -> None:
    assert room("host") == {"environment": int(SIZE * INSTALLED_PER_WHEEL_BYTE)}


def test_pushed_wheels_lie_beside_the_environment(room: Any) -> None:
    assert room("push") == {"wheels": SIZE, "environment": int(SIZE * INSTALLED_PER_WHEEL_BYTE)}


@pytest.mark.parametrize(("wheels_from", "stored"), [("push", True), ("host", False)])
def test_wheels_that_are_here_are_measured(room: Any, house: Path, wheels_from: str, stored: bool) -> None:
    wheels = {"wheels": sum(p.stat().st_size for p in house.iterdir())} if stored else {}
    assert room(wheels_from, wheelhouse=house) == {**wheels, "environment": int(50_000 * COMPILED)}


def test_a_wheel_that_is_none_is_left_to_the_installation(room: Any, house: Path) -> None:
    (house / "b-1-py3-none-any.whl").write_bytes(b"no archive")
    assert room("push", wheelhouse=house)["environment"] > 0


def test_hosts_that_copy_from_each_other_hold_a_wheelhouse_too(room: Any) -> None:
    assert room("host", shared=True)["wheels"] == SIZE


@pytest.mark.parametrize("wheels_from", ["host", "push"])
def test_a_whole_environment_needs_no_room(room: Any, wheels_from: str) -> None:
    there = {"eyas": {"envs": [{"id": LOCK.id[:16], "complete": True}]}}
    assert room(wheels_from, facts=replace(H200, tree={**H200.tree, **there})) == {}


@pytest.mark.parametrize(("wheels_from", "refused"), [("push", True), ("host", False)])
def test_room_for_the_environment_alone_is_too_little_for_pushed_wheels(
    wanted: Any, wheels_from: str, refused: bool
) -> None:
    free = int(SIZE * INSTALLED_PER_WHEEL_BYTE) + 2 * GIB
    disk = {"device": 99, "mount": "/opt", "free": free}
    disks = [d | disk if d["path"] == layout.ROOT else d for d in H200.tree["disks"]]
    facts = replace(H200, tree={**H200.tree, "disks": disks})
    errors = verdict(run_preconditions(facts, wanted(wheels_from, facts=facts))).errors
    full = [e.cause for e in errors if e.slug == "disk-full"]
    assert [("wheels 4.0 GiB, environment 14.4 GiB" in cause) for cause in full] == (
        [True] if refused else []
    )
