"""Parts of the lab that need neither root nor namespaces."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke import Collection, Program

import tasks
from inventory.errors import CheckRefused, UsageError
from tests.lab import needs
from tests.lab.faults import FAULTS
from tests.lab.host import HostSpec
from tests.lab.needs import ensure_packages, missing_packages, require_lab
from tests.lab.profiles import drivers, parse
from tests.lab.rootfs import apt_sources, locked, os_release, pick_release
from tests.lab.sizes import parse_size

DEB822 = """\
Types: deb deb-src
# a comment
URIs: http://mirror.example/debian
 http://second.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/some.gpg

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: http://vendor.example/
Suites: vendor-bookworm
Components: main
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://old.example/debian bookworm-security main
deb http://other.example/ubuntu noble main universe
deb-src http://old.example/debian bookworm main
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/vendor.list.disabled").write_text(ONE_LINE)
    (tmp_path / "sources.list").write_text(ONE_LINE)
    return tmp_path


def test_mirrors_are_the_machines_own(etc: Path) -> None:
    signed = "deb [signed-by=/usr/share/keyrings/some.gpg]"
    assert apt_sources("bookworm", etc).splitlines() == [
        "deb [arch=amd64 signed-by=/k.gpg] http://old.example/debian bookworm-security main",
        f"{signed} http://mirror.example/debian bookworm main contrib",
        f"{signed} http://mirror.example/debian bookworm-updates main contrib",
        f"{signed} http://second.example/debian bookworm main contrib",
        f"{signed} http://second.example/debian bookworm-updates main contrib",
    ]
    assert apt_sources("noble", etc) == "deb http://other.example/ubuntu noble main universe\n"
    assert not apt_sources("trixie", etc)
    assert not apt_sources("bookworm", etc / "nothing")


def test_an_unknown_release_or_system_is_refused() -> None:
    with pytest.raises(UsageError):
        pick_release("windows")
    with pytest.raises(UsageError):
        os_release("windows")
    assert 'VERSION_ID="24.04"' in os_release("ubuntu")
    assert not os_release("debian")


@pytest.mark.parametrize(("text", "size"), [("", None), ("96M", 96 << 20), ("2g", 2 << 30), ("1K", 1024)])
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["M", "0M", "-1M", "1.5G", "12", "1T", "²M", " 1M"])
def test_a_bad_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_missing_tools_are_named_by_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "SHOWN_BY", {"sometool": "no-such-program", "other": "sh"})
    assert missing_packages(["sometool", "other"]) == ["sometool"]
    with pytest.raises(CheckRefused, match="sometool") as e:
        ensure_packages(["sometool", "other"], yes=False)
    assert "--yes" in e.value.hint or "install" in e.value.hint


@pytest.mark.parametrize(
    ("uid", "system", "machine", "why"),
    [
        (1000, "Linux", "x86_64", "root"),
        (0, "Darwin", "x86_64", "Darwin"),
        (0, "Linux", "aarch64", "aarch64"),
    ],
)
def test_where_no_lab_can_be_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, uid: int, system: str, machine: str, why: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(CheckRefused, match=why):
        require_lab()


def test_a_lock_that_was_removed_while_waiting_is_taken_anew(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, fleeting=True):
        assert path.exists()
    assert not path.exists()
    with locked(path):
        held = "import fcntl,sys; fcntl.flock(open(sys.argv[1],'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        done = subprocess.run([sys.executable, "-c", held, path], capture_output=True, check=False)
    assert done.returncode == 1


def test_every_fault_can_be_said_and_undone_or_is_an_event() -> None:
    events = {name for name, fault in FAULTS.items() if fault.off is None}
    assert events == {"sessions-killed", "reboot"}
    assert all(fault.says.format(value=1) for fault in FAULTS.values())


def test_a_fault_on_top_of_a_fault() -> None:
    profile = parse("h200x8+driver-535+mig+xid79")
    assert profile.packages == ("nvidia-driver-535-server-open", "nvidia-fabricmanager-535")
    assert profile.keys["cuda"] == str(drivers()[535]["cuda"])
    assert (profile.keys["0.mig"], profile.keys["0.lost"]) == ("1", "1")
    assert "1.lost" not in profile.keys


@pytest.mark.parametrize(
    "spec",
    [{"os": "beos"}, {"user": "bob"}, {"sudo": "maybe"}, {"size": 1}, {"memory": 1}, {"profile": "rtx1"}],
)
def test_a_host_that_could_not_be_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as e:
        HostSpec("gpu01", 0, **spec)
    assert e.value.hint


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("lab --help", 0, "Usage:"),
        ("lab up --help", 0, "Usage:"),
        ("lab", 2, "invoke lab up"),
        ("lab dance", 2, "no such lab action 'dance'"),
        ("lab up --size huge", 2, "bad size"),
    ],
)
def test_words_and_options_of_the_task(
    words: str, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as e:
        Program(namespace=Collection.from_module(tasks)).run(["invoke", *words.split()])
    assert e.value.code == code
    said = capsys.readouterr()
    assert text in said.out + said.err
