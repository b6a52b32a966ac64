"""./eyas in odd places: a stand-in uv makes the environment, so that each start takes milliseconds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LAUNCHER = Path(__file__).resolve().parent.parent / "eyas"
TASKS = "import json, os, sys\nprint(json.dumps({'argv': sys.argv[1:], 'cwd': os.getcwd()}))\n"
#: Counts its runs; fails halfway while the file `break` exists; otherwise an environment with this Python.
UV = """#!/bin/sh
if [ "$1" = --version ]; then echo "${FAKE_UV_VERSION:-uv 0.9.1}"; exit 0; fi
echo sync >>"$FAKE_UV_LOG"
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
if [ -e "$FAKE_UV_LOG.break" ]; then touch "$UV_PROJECT_ENVIRONMENT/torn"; exit 1; fi
sleep "${FAKE_UV_SECONDS:-0}"
ln -sf "$FAKE_PYTHON" "$UV_PROJECT_ENVIRONMENT/bin/python"
"""


class Checkout:
    """A copy of the launcher in a folder with a space, with a stand-in uv on PATH."""

    def __init__(self, base: Path) -> None:
        self.root = base / "my checkout"
        self.bin = base / "bin"
        self.log = base / "uv.log"
        self.root.mkdir()
        self.bin.mkdir()
        shutil.copy(LAUNCHER, self.root / "eyas")
        (self.root / "uv.lock").write_text("version = 1\n")
        (self.root / "tasks.py").write_text(TASKS)
        self.program("uv", UV)
        self.env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(base / "home"),
            "FAKE_UV_LOG": str(self.log),
            "FAKE_PYTHON": sys.executable,
        }

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(
        self, *argv: str, program: Path | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(program or self.root / "eyas"), *argv],
            cwd=cwd or self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *argv: str, program: Path | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        with self.start(*argv, program=program, cwd=cwd) as process:
            out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    @property
    def syncs(self) -> int:
        return len(self.log.read_text().split()) if self.log.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_words_and_folder_reach_the_task_through_a_link(checkout: Checkout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "eyas").symlink_to("../my checkout/eyas")
    (checkout.bin / "eyas").symlink_to(elsewhere / "eyas")
    done = checkout.run("plan", "--facts", "a b.json", program=checkout.bin / "eyas", cwd=elsewhere)
    assert json.loads(done.stdout) == {"argv": ["plan", "--facts", "a b.json"], "cwd": str(elsewhere)}
    assert (checkout.root / ".venv").is_dir()


def test_the_environment_is_made_once_per_lock(checkout: Checkout) -> None:
    assert [checkout.run().returncode for _ in range(2)] == [0, 0]
    assert checkout.syncs == 1
    (checkout.root / ".venv" / "kept").touch()
    (checkout.root / "uv.lock").write_text("version = 2\n")
    assert checkout.run().returncode == 0
    assert checkout.syncs == 2
    assert (checkout.root / ".venv" / "kept").exists()


def test_compiled_files_go_where_they_are_not_unwanted(checkout: Checkout) -> None:
    checkout.env["PYTHONDONTWRITEBYTECODE"] = "1"
    (checkout.root / "other.py").touch()
    (checkout.root / "tasks.py").write_text("import other")
    assert checkout.run().returncode == 0
    assert list(checkout.root.rglob("other.*.pyc"))
    assert not (checkout.root / "__pycache__").exists()


def test_a_torn_environment_is_made_anew(checkout: Checkout, tmp_path: Path) -> None:
    broken = tmp_path / "uv.log.break"
    broken.touch()
    done = checkout.run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "uv could not make .venv" in done.stderr
    broken.unlink()
    assert checkout.run().returncode == 0
    assert not (checkout.root / ".venv" / "torn").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Checkout) -> None:
    checkout.run()
    python = checkout.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python3")
    assert checkout.run().returncode == 0
    assert checkout.syncs == 2


def test_two_at_once_make_it_once(checkout: Checkout) -> None:
    checkout.env["FAKE_UV_SECONDS"] = "0.3"
    first, second = checkout.start(), checkout.start()
    results = [p.communicate(timeout=30) for p in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert checkout.syncs == 1
    assert any("waiting for another" in err for _, err in results)
    assert not (checkout.root / ".venv.lock").exists()


def test_the_turn_of_a_killed_launcher_is_taken_over(checkout: Checkout) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    (checkout.root / ".venv.lock").mkdir()
    (checkout.root / ".venv.lock" / "pid").write_text(f"{gone.pid}\n")
    assert checkout.run().returncode == 0


@pytest.mark.parametrize("home", ["", "/proc/none"])
def test_without_a_home_all_stays_in_the_checkout(checkout: Checkout, home: str) -> None:
    checkout.env["HOME"] = home
    if not home:
        del checkout.env["HOME"]
    assert checkout.run().returncode == 0
    assert (checkout.root / ".bootstrap").is_dir()


def without_venv(checkout: Checkout) -> None:
    """As Debian ships it; apt is there, but nobody said yes."""
    checkout.program("python3", '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexit 0\n')
    checkout.program("apt-get", "#!/bin/sh\nexit 1\n")


@pytest.mark.parametrize("old", ["uv 0.7.22", "uv 0.2.1 (abc 2024-06-01)", "something else"])
def test_python_without_venv_and_an_old_uv(checkout: Checkout, old: str) -> None:
    checkout.env["FAKE_UV_VERSION"] = old
    without_venv(checkout)
    done = checkout.run("demo")
    assert done.returncode == 2
    assert "python3-venv" in done.stderr
    assert checkout.syncs == 0
    assert not (checkout.root / ".venv.lock").exists()


def test_no_python_new_enough(checkout: Checkout) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        checkout.program(name, "#!/bin/sh\nexit 1\n")
    checkout.program("apt-get", "#!/bin/sh\nexit 1\n")
    done = checkout.run("demo", "--yes")
    assert done.returncode != 0
    assert "needs system packages: python3" in done.stderr
