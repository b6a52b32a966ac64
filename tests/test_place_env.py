"""A proven environment takes its place whole, whatever was there before."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from provision.programs import FOLDER


@pytest.fixture
def program() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "place_env.py"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    folder = tmp_path / ".abc.new"
    folder.mkdir()
    (folder / "new").touch()
    return folder


@pytest.mark.parametrize("before", ["nothing", "a torn one", "one and the rest of a cut-off run"])
@pytest.mark.parametrize("at_once", [True, False])
def test_it_is_there_and_nothing_else(
    program: dict[str, Any], new: Path, tmp_path: Path, before: str, at_once: bool
) -> None:
    env = tmp_path / "abc"
    if before != "nothing":
        (env / "lib").mkdir(parents=True)
    if "cut-off" in before:
        (tmp_path / ".abc.gone" / "lib").mkdir(parents=True)
    main = program["main"]
    if not at_once:  # as on a file system that can't swap two names
        main.__globals__["exchange"] = lambda _a, _b: False
    main(str(new), str(env))
    assert [p.name for p in tmp_path.iterdir()] == ["abc"]
    assert [p.name for p in env.iterdir()] == ["new"]


def test_two_names_are_swapped_at_once_where_that_can_be(
    program: dict[str, Any], new: Path, tmp_path: Path
) -> None:
    (tmp_path / "abc").mkdir()
    if program["exchange"](str(new), str(tmp_path / "abc")):
        assert (tmp_path / "abc" / "new").exists()
    else:
        assert (new / "new").exists()
    assert not program["exchange"](str(new), str(tmp_path / "none"))
