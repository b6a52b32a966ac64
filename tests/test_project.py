"""What `./eyas test` runs, and what it says of what it leaves out."""

import json
from pathlib import Path

import pytest
from invoke import Context

from surface import project
from tests.lab import needs


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Each step that would have run; a lab step fails."""
    ran: list[list[str]] = []

    def each(several: list[list[str]]) -> int:
        ran.extend(several)
        return 5 if several[:2] == project.LAB_TESTS else 0

    monkeypatch.setattr(project, "_each", each)
    monkeypatch.setattr(needs, "why_no_lab", lambda: "it needs root")
    return ran


def test_quick_says_what_it_left_out(steps: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert project.test.body(Context(), quick=True) is None
    assert steps == [project.UNIT_TESTS]
    assert "left out: tests that start processes, lab hosts or the engine" in capsys.readouterr().out


def test_a_file_with_a_failure_runs_again_whole(
    steps: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    failed = tmp_path / "lastfailed"
    failed.write_text(
        json.dumps(
            dict.fromkeys(("tests/test_project.py::a", "tests/test_project.py::b", "tests/gone.py"), True)
        )
    )
    monkeypatch.setattr(project, "LAST_FAILED", failed)
    project.test.body(Context(), again=True)
    again = ["pytest", "-q", "tests/test_project.py", "-m", f"not ({project.UNIT}) and not long"]
    assert steps == [project.UNIT_TESTS, *project.LAB_TESTS, again]
    assert "are skipped: it needs root" in capsys.readouterr().out


def test_every_test_is_in_one_step() -> None:
    steps = (project.UNIT_TESTS, *project.LAB_TESTS, *project.LONG_TESTS)
    marks = [step[step.index("-m", 2) + 1] for step in steps]
    for here in (
        {"lab"},
        {"engine"},
        {"process"},
        {"browser"},
        {"lab", "engine"},
        {"lab", "engine", "long"},
        set(),
    ):
        true = {name: name in here for name in ("lab", "engine", "process", "browser", "long")}
        assert sum(bool(eval(mark, true)) for mark in marks) == 1, here
