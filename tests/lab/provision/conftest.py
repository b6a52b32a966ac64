"""Fixtures: `stage` (one lab host and a hub, shared by all tests of a file), `serving`."""

from collections.abc import Iterator

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.provision.stage import Stage


@pytest.fixture(scope="module")
def stage(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A fresh gpu01 with two RTX 4090, the hub, and an operator's folder."""
    lab = make_lab(["gpu01"], profile="rtx4090x2")
    try:
        with Stage.open(lab, tmp_path_factory.mktemp("stage")) as opened:
            yield opened
    finally:
        lab.down()


@pytest.fixture(autouse=True)
def _quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """No rule of the hub outlives its test."""
    stage: Stage | None = request.getfixturevalue("stage") if "stage" in request.fixturenames else None
    yield
    if stage:
        stage.hub.faults.clear()
