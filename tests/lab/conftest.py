"""Fixtures: `lab` (two hosts, shared by the session), `healed`, `make_lab` (a lab of one's own)."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.hosts import Lab, lab_names
from tests.lab.needs import why_no_lab

# Started in the background of a shell, everything ignores Ctrl-C, and so would what the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MINE = f"pytest-{os.getpid()}"
MakeLab = Callable[..., Lab]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := why_no_lab():
        for item in items:
            if "lab" in item.keywords and item.get_closest_marker("lab"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def keep_lab() -> Iterator[MakeLab]:
    """Like make_lab, for labs that several modules share: gone with the session."""
    _sweep()
    made: list[Lab] = []

    def make(names: list[str], **spec: object) -> Lab:
        lab = Lab.up(names, name=f"{MINE}-{len(made)}", yes=True, **spec)  # type: ignore[arg-type]
        made.append(lab)
        return lab

    try:
        yield make
    finally:
        for lab in made:
            lab.down()


@pytest.fixture(scope="module")
def make_lab(keep_lab: MakeLab) -> Iterator[MakeLab]:
    """``make_lab(["gpu01"], profile="h200x2") -> Lab`` under a name of this run; gone with the module."""
    made: list[Lab] = []

    def make(names: list[str], **spec: object) -> Lab:
        made.append(keep_lab(names, **spec))
        return made[-1]

    yield make
    for lab in made:
        lab.down()


@pytest.fixture(scope="session")
def lab(keep_lab: MakeLab) -> Lab:
    """gpu01 and gpu02 with two RTX 4090 each. Heal what you break: others use it after you."""
    return keep_lab(["gpu01", "gpu02"], profile="rtx4090x2")


@pytest.fixture
def healed(lab: Lab) -> Iterator[Lab]:
    """The shared lab, with whatever the test broke healed afterwards."""
    yield lab
    for name in lab.hosts:
        lab.heal(name)


def _sweep() -> None:
    """Labs of earlier runs that died before they could remove them."""
    for name in lab_names():
        pid = name.split("-")[1] if name.startswith("pytest-") else ""
        if pid and not Path(f"/proc/{pid}").exists():
            with suppress(OSError):
                Lab.load(name).down()
