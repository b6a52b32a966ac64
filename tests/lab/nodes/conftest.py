"""Fixtures: `pair` (the real engine on two lab hosts), `group` (the stand-in on two)."""

from collections.abc import Iterator

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.nodes.group import GroupFleet
from tests.lab.nodes.pair import HOSTS, Pair


@pytest.fixture(scope="module")
def pair(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """gpu01 has served the target alone; ``pair.alone_said`` is its greedy output."""
    lab = make_lab(list(HOSTS))
    try:
        with Pair.open(lab, tmp_path_factory.mktemp("pair")) as opened:
            opened.unpack_kept(HOSTS[0])
            opened.serve_alone()
            opened.keep()
            opened.unpack_kept(HOSTS[1])
            yield opened
    finally:
        lab.down()


@pytest.fixture(scope="module")
def group(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupFleet]:
    lab = make_lab(list(HOSTS), profile="rtx4090x1")
    try:
        yield GroupFleet(lab, tmp_path_factory.mktemp("group"))
    finally:
        lab.down()
