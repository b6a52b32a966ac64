"""Known hosts as they are read for one host: plain, hashed, with a port, damaged, and thousands of them."""

import time
from pathlib import Path

import paramiko
import pytest
from paramiko.ed25519key import Ed25519Key

from provision.hostkeys import known_entries

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIE6YqnRSlmhXE6xfbnC3GQZNnKZB2ZfqnEPqJ6b1iGzX"


def _known(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["gpu01", "10.0.0.1", "[gpu01]:2222", "hashed.example"])
def test_a_host_is_found_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    hashed = paramiko.HostKeys.hash_host("hashed.example")
    path = _known(
        tmp_path,
        "# fleet",
        "",
        f"gpu01,10.0.0.1 ssh-ed25519 {KEY} a comment",
        f"[gpu01]:2222 ssh-ed25519 {KEY}",
        f"{hashed} ssh-ed25519 {KEY}",
    )
    found = known_entries(path, name)
    assert [type(e.key) for e in found] == [Ed25519Key]


@pytest.mark.parametrize(
    "line",
    [
        "gpu01",
        "gpu01 ssh-ed25519",
        "gpu01 ssh-ed25519 not-base64",
        f"gpu01 ssh-new {KEY}",
        f"|1|x ssh-ed25519 {KEY}",
        f"|1|!!|!! ssh-ed25519 {KEY}",
        f"@revoked gpu01 ssh-ed25519 {KEY}",
        "\x00\xff",
    ],
)
def test_a_damaged_line_names_nobody_and_hides_no_other(tmp_path: Path, line: str) -> None:
    assert known_entries(_known(tmp_path, line), "gpu01") == []
    assert len(known_entries(_known(tmp_path, line, f"gpu01 ssh-ed25519 {KEY}", "x y z"), "gpu01")) == 1


def test_no_file_knows_nobody_and_a_changed_one_is_read_again(tmp_path: Path) -> None:
    assert known_entries(tmp_path / "none", "gpu01") == []
    path = _known(tmp_path, f"gpu02 ssh-ed25519 {KEY}")
    assert known_entries(path, "gpu01") == []
    _known(tmp_path, f"gpu02 ssh-ed25519 {KEY}", f"gpu01 ssh-ed25519 {KEY}")
    assert len(known_entries(path, "gpu01")) == 1


def test_a_fleet_of_ten_thousand_is_read_once(tmp_path: Path) -> None:
    path = _known(tmp_path, *(f"gpu{n} ssh-ed25519 {KEY}" for n in range(10_000)))
    known_entries(path, "gpu1")
    began = time.process_time()
    assert all(known_entries(path, f"gpu{n}") for n in range(500))
    assert time.process_time() - began < 1, "each host's lookup reads the whole file"
