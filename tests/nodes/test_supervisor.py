"""What a supervisor calls a hang, and what it doesn't."""

import importlib
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PROGRAMS = Path(__file__).resolve().parents[2] / "systemd"


class Child:
    """An engine's process: alive until ``dead`` is set."""

    dead = False

    def wait(self, seconds: float) -> int:
        if not self.dead:
            raise subprocess.TimeoutExpired("engine", seconds)
        return -9


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    module = importlib.import_module("supervisor")
    made = module.Supervisor(SimpleNamespace(timeouts={"hang_s": -1}))
    made.child = Child()
    made.Down = module.Down
    return made


def test_an_engine_killed_while_it_was_asked_did_not_hang(
    supervised: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when another rank was lost, and the group's engine ended for it."""

    def look() -> None:
        supervised.child.dead = True
        raise supervised.Down("Remote end closed connection without response")

    monkeypatch.setattr(supervised, "look", look)
    assert supervised.watch() is True
    assert "hung" not in capsys.readouterr().out


def test_an_engine_that_lives_and_does_not_answer_hangs(
    supervised: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> None:
        raise supervised.Down("timed out")

    monkeypatch.setattr(supervised, "look", look)
    assert supervised.watch() is False
    assert "hung for 0 s (timed out)" in capsys.readouterr().out
