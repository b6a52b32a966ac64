"""Fixtures: `fleet` (four lab hosts that serve a first release of the stand-in engine)."""

from collections.abc import Iterator

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.rollout.fleet import Fleet


@pytest.fixture(scope="module")
def fleet(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = make_lab([f"gpu{n:02}" for n in range(1, 5)], profile="rtx4090x1")
    try:
        yield Fleet(lab, tmp_path_factory.mktemp("fleet"))
    finally:
        lab.down()
