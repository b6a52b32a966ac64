"""Fixtures: `fleet` (four lab hosts that serve a first release of the stand-in engine), healed after each."""

from collections.abc import Iterator

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.rollout.hubfleet import Fleet


@pytest.fixture(scope="package")
def fleet(keep_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = keep_lab([f"gpu{n:02}" for n in range(1, 5)], profile="rtx4090x1")
    try:
        with Fleet.open(lab, tmp_path_factory.mktemp("fleet")) as opened:
            yield opened
    finally:
        lab.down()
