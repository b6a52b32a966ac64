"""Fixtures: `stage`, as for provision, and `bench`, the command line in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inventory.model import Deployment
from tests.lab.conftest import MakeLab
from tests.lab.provision.stage import Command, Stage

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def stage(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    lab = make_lab(["gpu01"], profile="rtx4090x1")
    try:
        with Stage.open(lab, tmp_path_factory.mktemp("stage")) as opened:
            yield opened
    finally:
        lab.down()


@dataclass
class Bench:
    """`invoke bench` of this stage's host."""

    stage: Stage

    def start(self, d: Deployment, *words: str) -> Command:
        argv = [sys.executable, "-c", "from tasks import main; main()", "bench", "--host", "gpu01"]
        argv += ["--inventory", str(self.stage.folder / "hosts.yml")]
        argv += ["--deployment", str(self.stage.write(d)), "--no-preflight", "--json", *words]
        env = {**os.environ, "HF_ENDPOINT": self.stage.hub.url}
        env["XDG_STATE_HOME"] = str(self.stage.folder / "state")
        log = self.stage.folder / "bench.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
            )
        return Command(process, str(log))

    def run(self, d: Deployment, *words: str, code: int = 0) -> dict[str, Any]:
        """The JSON document."""
        got, out, said = self.start(d, *words).finish(timeout=600)
        assert got == code, said + out[:2000]
        assert "Traceback" not in said
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture(scope="module")
def bench(stage: Stage) -> Bench:
    return Bench(stage)
