"""A wheelhouse is downloaded when it is wanted, once, and is whole or not there."""

import threading
from pathlib import Path

import pytest

from inventory.errors import CheckRefused
from provision import wheelhouse
from provision.wheelhouse import Wheelhouse


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Pip stands still; the list grows by each folder it was to fill."""
    asked: list[Path] = []

    def download(_lock: str, folder: Path, *_: object) -> None:
        asked.append(folder)
        (folder / "a-1-py3-none-any.whl").write_bytes(b"12345")
        if (tmp_path / "broken").exists():
            raise CheckRefused("pip could not")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(wheelhouse, "_download", download)
    return asked


HOUSE = Wheelhouse("f" * 64, "a==1\n", "cp312", 39)


def test_hosts_at_once_share_one_download(downloads: list[Path]) -> None:
    assert HOUSE.size() is None
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(HOUSE.fetched(print))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(downloads) == 1
    assert found == [HOUSE.folder] * 4
    assert HOUSE.size() == 5


def test_a_torn_download_is_no_wheelhouse(downloads: list[Path], tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(CheckRefused, match="pip could not"):
        HOUSE.fetched(print)
    assert HOUSE.size() is None
    assert list(HOUSE.folder.parent.iterdir()) == []
    (tmp_path / "broken").unlink()
    assert HOUSE.fetched(print).is_dir()


def test_a_cache_that_takes_nothing_is_a_refusal(downloads: list[Path], tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(CheckRefused, match="could not be kept") as caught:
        HOUSE.fetched(print)
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_the_operators_own_folder(downloads: list[Path], tmp_path: Path) -> None:
    own = Wheelhouse("f" * 64, "", "cp312", 39, own=tmp_path / "none")
    with pytest.raises(CheckRefused, match="no folder of wheels"):
        own.fetched(print)
    (tmp_path / "none").mkdir()
    assert own.fetched(print) == tmp_path / "none"
    assert downloads == []
