"""Which wheel of an index fits a host, and what a wheelhouse that was copied must hold."""

import hashlib
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from provision.programs import FOLDER

WHEELS = runpy.run_path(str(FOLDER / "wheels.py"), run_name="loaded")


@pytest.mark.parametrize(
    ("filename", "rank"),
    [
        ("a-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", (4, 17)),
        ("a-1-cp312-cp312-manylinux_2_40_x86_64.whl", None),
        ("a-1-cp312-cp312-manylinux_2_17_aarch64.whl", None),
        ("a-1-cp313-cp313-manylinux_2_17_x86_64.whl", None),
        ("a-1-cp39-abi3-manylinux2014_x86_64.whl", (3, 17)),
        ("a-1-cp313-abi3-manylinux2014_x86_64.whl", None),
        ("a-1-py3-none-any.whl", (1, 0)),
        ("a-1-py2.py3-none-any.whl", (1, 0)),
        ("a-1-py2-none-any.whl", None),
        ("a-1-cp312-cp312t-manylinux2014_x86_64.whl", None),
        ("a-1-cp312-cp312-musllinux_1_2_x86_64.whl", None),
        ("a-1-cp312-cp312-win_amd64.whl", None),
        ("a-1.tar.gz", None),
    ],
)
def test_a_wheel_fits_or_not(filename: str, rank: tuple[int, int] | None) -> None:
    assert WHEELS["rank"](filename, [3, 12], 39, "x86_64") == rank


def request(folder: Path, **packages: bytes) -> dict[str, Any]:
    locked = {n.replace("_", "-"): [hashlib.sha256(b).hexdigest()] for n, b in packages.items()}
    return json.loads(json.dumps({"folder": str(folder), "packages": locked}))  # type: ignore[no-any-return]


def test_a_copied_wheelhouse_is_named_only_when_every_wheel_is_the_locked_one(tmp_path: Path) -> None:
    folder, partial = tmp_path / "house", tmp_path / "house.partial"
    partial.mkdir()
    wanted = request(folder, torch=b"torch", my_pkg=b"mine")
    (partial / "torch-2-cp312-cp312-linux_x86_64.whl").write_bytes(b"t0rch")
    (partial / "My_Pkg-1-py3-none-any.whl").write_bytes(b"mine")
    (partial / "stray.txt").touch()
    with pytest.raises(WHEELS["Failed"], match="torch"):
        WHEELS["make"]("verify", wanted)
    assert [p.name for p in partial.iterdir()] == ["My_Pkg-1-py3-none-any.whl"]
    (partial / "torch-2-cp312-cp312-linux_x86_64.whl").write_bytes(b"torch")
    WHEELS["make"]("verify", wanted)
    assert (folder / ".eyas-whole").exists()
    assert not partial.exists()
