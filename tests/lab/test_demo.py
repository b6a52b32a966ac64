"""The main job, end to end, as a user runs it: one command, one JSON document."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(*words: str, timeout: float) -> dict[str, Any]:
    argv = [sys.executable, "-m", "invoke", "demo", "--json", "--down", "--yes", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.lab
@pytest.mark.engine
def test_real_engine_serves_with_a_head_and_recovers() -> None:
    result = demo(timeout=2400)
    assert result["ready"] is True
    assert result["acceptance_rate"] > 0.3
    assert 1 < result["acceptance_length"] <= 4
    assert result["lossless"] is True
    assert result["second_run_changed"] == 0
    assert result["recovered_after_kill"] is True


@pytest.mark.lab
def test_quick_demo_tells_the_same_story() -> None:
    result = demo("--quick", timeout=600)
    assert result["engine"] == "stand-in"
    assert result["lossless"] is True
    assert result["second_run_changed"] == 0
    assert result["recovered_after_kill"] is True
