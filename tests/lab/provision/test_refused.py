"""Each refusal before anything is touched: its exit code, its words, and a host as it was."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision import ssh
from provision.wheelhouse import Wheelhouse
from tests.lab.conftest import MakeLab
from tests.lab.provision.stage import PORT, Stage

pytestmark = pytest.mark.lab


@pytest.fixture(autouse=True)
def untouched(stage: Stage) -> Iterator[None]:
    yield
    stage.lab.heal("gpu01")
    assert stage.sh("ls -d /opt/eyas /var/lib/eyas /etc/eyas 2>/dev/null || true") == ""
    assert stage.sh("getent passwd eyas || true") == ""


CARDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "too old a driver": ("gpu:driver-570", {}, "570"),
    "no driver loaded": ("gpu:not-loaded", {}, "driver"),
    "library and module differ": ("gpu:mismatch", {}, "mismatch"),
    "the open source driver": ("gpu:nouveau", {}, "nouveau"),
    "too few cards": ("", {"tensor_parallel": 4}, "4"),
    "cards without kernels": ("gpu:pascal", {}, "compute capability"),
    "port taken": ("port-taken", {}, str(PORT)),
    "a clock that is off": ("clock", {}, "3600 s ahead"),
    "too old a C library": ("glibc", {}, "glibc is 2.17"),
    "too old a Python": ("python", {}, "Python is 3.8.10"),
}


@pytest.mark.parametrize("case", CARDS)
def test_a_host_that_does_not_fit_is_refused(stage: Stage, case: str) -> None:
    fault, changes, word = CARDS[case]
    if fault:
        stage.lab.fault("gpu01", fault)
    report = stage.run(stage.deployment(**changes))
    assert (report.exit_code, report.status, report.changes) == (4, "refused", []), report.error
    assert word in report.error
    assert report.hint


def test_no_fit_of_driver_and_any_version_is_named(stage: Stage) -> None:
    stage.lab.fault("gpu01", "gpu:driver-570")
    report = stage.run(stage.deployment(lock=None, engine_version="auto"), check=True)
    assert report.exit_code in {2, 4}
    assert report.hint


def test_a_system_that_is_not_known_is_refused_and_an_older_one_only_warned_of(stage: Stage) -> None:
    before = stage.sh("cat /etc/os-release")
    try:
        stage.on().write("/etc/os-release", 'ID="rocky"\nVERSION_ID="9.4"\nPRETTY_NAME="Rocky Linux 9.4"\n')
        report = stage.run(stage.deployment())
        assert (report.exit_code, report.status) == (4, "refused"), report.error
        assert "Rocky Linux 9.4" in report.error
        text = 'ID="ubuntu"\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n'
        stage.on().write("/etc/os-release", text)
        report = stage.run(stage.deployment(), check=True)
        assert report.status == "pending", report.error
        assert any("22.04" in f.cause for f in report.findings)
    finally:
        stage.on().write("/etc/os-release", before + "\n")


def test_looking_downloads_no_wheels(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = stage.run(stage.deployment(wheels_from="push"), check=True)
    assert report.status == "pending", report.error
    assert not list(tmp_path.rglob("*wheelhouse*"))


def test_a_small_disk_is_refused(
    stage: Stage, make_lab: MakeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(["gpu01"], profile="rtx4090x2", size=200 << 20)
    mine, stage.lab = stage.lab, lab
    try:
        stage.inventory()
        monkeypatch.setattr(Wheelhouse, "folder", tmp_path / "house")
        report = stage.run(stage.deployment(wheels_from="push"))
        assert (report.exit_code, report.status) == (4, "refused"), report.error
        assert "wheels" in report.error
        assert not list(tmp_path.iterdir()), "downloaded for a host that is refused"
        assert stage.sh("ls /opt") == "eyas-lab"
    finally:
        stage.lab = mine
        stage.inventory()
        lab.down()


# ---- not let in: exit 3


def test_an_unknown_and_a_changed_host_key(stage: Stage) -> None:
    known = stage.lab.home / "known_hosts"
    text = known.read_text()
    try:
        known.write_text("")
        report = stage.run(stage.deployment())
        assert report.exit_code == 3
        assert "--accept-new-host-keys" in report.hint
        known.write_text(text)
        stage.lab.fault("gpu01", "host-key-changed")
        report = stage.run(stage.deployment())
        assert report.exit_code == 3
        assert "has changed" in report.error
        assert "ssh-keygen" in report.hint
    finally:
        known.write_text(text)


def test_sudo_that_is_refused_or_asks(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.lab.fault("gpu01", "no-sudo")
    report = stage.run(stage.deployment())
    assert (report.exit_code, report.status) == (3, "unreachable"), report.error
    assert "sudo" in report.error
    stage.lab.heal("gpu01")
    stage.lab.fault("gpu01", "sudo-password")
    report = stage.run(stage.deployment())
    assert report.exit_code == 3
    assert "NOPASSWD" in report.hint
    for password, code in (("wrong", 3), ("lab-sudo-pw", 0)):
        options = ssh.SshOptions(ask_sudo=lambda p=password: p)  # type: ignore[misc]
        monkeypatch.setattr(ssh, "SshOptions", lambda o=options: o)
        report = stage.run(stage.deployment(), check=True)
        assert report.exit_code == code, report.error
        monkeypatch.undo()
