"""The programs that run on the host: what prune refuses, what served.py finds, on folders of this machine."""

import hashlib
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"


def program(name: str) -> dict[str, Any]:
    return runpy.run_path(str(SYSTEMD / name), run_name="loaded")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/opt/eyas/envs/abc", ""),
        ("/var/lib/eyas/weights/m/c1", ""),
        ("/opt/eyas/envs", "no folder eyas made"),
        ("/opt/eyas/envs/..", "no folder eyas made"),
        ("/opt/eyas/envs/a/../../../etc", "no folder eyas made"),
        ("/var/lib/eyas/current/d", "no folder eyas made"),
        ("/etc", "no folder eyas made"),
        ("/opt/eyas/envs/served", "served"),
        ("/opt/eyas/envs/busy", "a process uses it"),
        ("/opt/eyas/envs/bus", ""),
    ],
)
def test_prune_has_the_last_word(path: str, why: str) -> None:
    said = program("prune.py")["why_not"](path, {"/opt/eyas/envs/served"}, {"/opt/eyas/envs/busy/bin/python"})
    assert why in said
    assert bool(said) is bool(why)


def test_prune_sees_what_current_links_need(tmp_path: Path) -> None:
    release = tmp_path / "releases" / "r1"
    release.mkdir(parents=True)
    told = {"argv": ["/opt/eyas/envs/e1/bin/vllm"], "weights": {"target": {"path": "/w/m/c"}}}
    (release / "release.json").write_text(json.dumps(told))
    (tmp_path / "current").mkdir()
    (tmp_path / "current" / "d").symlink_to(release)
    assert program("prune.py")["served"](str(tmp_path)) == {str(release), "/opt/eyas/envs/e1", "/w/m/c"}


def test_prune_does_nothing_when_a_release_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    (tmp_path / "current" / "d").symlink_to(tmp_path / "gone")
    with pytest.raises(OSError, match=r"release\.json"):
        program("prune.py")["served"](str(tmp_path))


def test_units_edited_missing_and_added_to(tmp_path: Path) -> None:
    release, live = tmp_path / "release", tmp_path / "live"
    for folder in (release, live):
        folder.mkdir()
        for name in ("a.service", "a.timer", "b.service"):
            (folder / name).write_text(name)
    units = program("served.py")["units"]
    assert units(release, live) == []
    (live / "a.service").write_text("by hand")
    (live / "b.service").unlink()
    (live / "a.timer.d").mkdir()
    (live / "a.timer.d" / "x.conf").touch()
    assert [line.replace(f"{live}/", "") for line in units(release, live)] == [
        "a.service was edited",
        "b.service is missing",
        "a.timer.d adds x.conf",
    ]


def test_packages_against_the_proof(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    for name in ("torch-2.8.0", "my_pkg-1.0", "extra-3"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    proof = {"packages": {"torch": "2.9.0", "my-pkg": "1.0", "gone": "1"}}
    (tmp_path / "eyas-proof.json").write_text(json.dumps(proof))
    found = program("served.py")["packages"]({"argv": [f"{tmp_path}/bin/vllm"]})
    assert found == ["torch 2.8.0 instead of 2.9.0", "gone is missing instead of 1", "extra 3 was added"]


@pytest.mark.parametrize(("deep", "found"), [(False, []), (True, ["has other content"])])
def test_weights_by_size_and_by_content(tmp_path: Path, *, deep: bool, found: list[str]) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    mark = {"files": [{"path": "w", "size": 5, "sha256": digest}]}
    (tmp_path / ".eyas-verified.json").write_text(json.dumps(mark))
    (tmp_path / "w").write_bytes(b"wrong")
    told = program("served.py")["weights"]({"weights": {"target": {"path": str(tmp_path)}}}, deep)
    assert [line.split("/w ")[1] for line in told] == found
    (tmp_path / "w").write_bytes(b"cut")
    assert "3 bytes instead of 5" in program("served.py")["wrong"](tmp_path, mark["files"][0], False)


def test_what_nobody_could_look_at_is_said(tmp_path: Path) -> None:
    release = {"deployment": "d", "argv": [f"{tmp_path}/bin/x"], "env": {}, "weights": {}}
    found, unseen = program("served.py")["differences"](release, tmp_path, tmp_path, False)
    assert found == {}
    assert set(unseen) == {"argv", "environment", "limits", "packages"}
