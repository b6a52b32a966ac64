"""The command line in processes of its own: closed streams, a full disk, a reader that left, quick starts."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surface.commandline import BROKEN_PIPE

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parent.parent


def start(*argv: str, shell_tail: str = "") -> subprocess.CompletedProcess[str]:
    """In a process of its own, through sh, so that its streams can be closed."""
    line = f'"{sys.executable}" "{ROOT}/tasks.py" {" ".join(argv)} {shell_tail}; echo "rc=$?" >&2'
    env = {k: v for k, v in os.environ.items() if k != "HOME"}
    return subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("argv", "tail", "code"),
    [
        (("engines", "--json"), ">&-", 0),
        (("deployments",), "<&- >&-", 0),
        (("engines", "--json"), ">/dev/full", 2),
        (("engines",), ">/dev/full", 2),
    ],
)
def test_streams_that_take_nothing(argv: tuple[str, ...], tail: str, code: int) -> None:
    done = start(*argv, shell_tail=tail)
    assert f"rc={code}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def broken_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("argv", [("engines",), ("engines", "--json"), ("--list",), ("plan", "--help")])
def test_a_reader_that_left(argv: tuple[str, ...], broken_pipe: int) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tasks.py", *argv],
        stdout=broken_pipe,
        stderr=subprocess.PIPE,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
    )
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, b"")


def test_starting_loads_no_library_that_the_task_list_does_not_need() -> None:
    """`--list` and completion stay quick: schemas, tables, SSH and HTTP load where they are used."""
    slow = "{'pydantic', 'rich', 'jinja2', 'fabric', 'paramiko', 'requests', 'huggingface_hub', 'uv'}"
    line = f"import sys, tasks; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
