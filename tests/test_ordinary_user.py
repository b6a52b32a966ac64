"""./eyas for somebody who is not root, in a copy of the checkout: a real environment, no tracebacks."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not any(Path(f"/usr/bin/python3.{minor}").exists() for minor in range(11, 14)),
        reason="an ordinary user finds no Python 3.11 to 3.13 in /usr/bin",
    ),
]
ROOT = Path(__file__).resolve().parent.parent
NOBODY = 65534
LEFT_OUT = {".git", ".venv", "__pycache__", ".bootstrap"}


class User:
    """An ordinary user's home, with uv on PATH and the system's own Python."""

    def __init__(self, base: Path) -> None:
        self.checkout = base / "eyas"
        shutil.copytree(ROOT, self.checkout, ignore=lambda _, names: LEFT_OUT & set(names), symlinks=True)
        (base / "bin").mkdir()
        shutil.copy(uv.find_uv_bin(), base / "bin" / "uv")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "XDG_", "VIRTUAL_ENV"))}
        self.env = {**kept, "HOME": str(base), "PATH": f"{base}/bin:/usr/bin:/bin"}
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(base)], check=True)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        who: dict[str, Any] = {}
        if os.geteuid() == 0:
            who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        return subprocess.run(
            argv, cwd=self.checkout, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", check=False, timeout=240, **who,
        )  # fmt: skip


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with tempfile.TemporaryDirectory(prefix="eyas-user-") as base:
        Path(base).chmod(0o755)
        yield User(Path(base))


def test_the_first_task_makes_an_environment(user: User) -> None:
    done = user.run("./eyas", "hosts", "--json")
    assert done.returncode == 2, done.stderr
    assert "making .venv from uv.lock" in done.stderr
    assert "no inventory was found" in done.stdout
    assert "Traceback" not in done.stderr
    again = user.run("./eyas", "deployments")
    assert (again.returncode, again.stderr) == (0, "")


def test_what_needs_root_is_skipped_with_the_reason(user: User) -> None:
    done = user.run(".venv/bin/python", "-m", "pytest", "-q", "-m", "lab", "tests/lab/provision")
    assert done.returncode == 0, done.stdout
    assert "the lab makes namespaces, mounts and a bridge: it needs root" in done.stdout
    assert "passed" not in done.stdout


def test_a_task_that_needs_root_says_so(user: User) -> None:
    done = user.run("./eyas", "lab", "up", "--json")
    assert done.returncode == 4, done.stderr
    assert "needs root" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_checkout_of_someone_else(user: User) -> None:
    subprocess.run(["rm", "-rf", str(user.checkout / ".venv")], check=True)
    user.checkout.chmod(0o555)
    if os.geteuid() == 0:
        os.chown(user.checkout, 0, 0)
    done = user.run("./eyas", "hosts")
    assert done.returncode == 2
    assert "make a copy that you own" in done.stderr
