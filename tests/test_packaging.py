"""What an installed eyas needs beside its modules is packaged, and nothing of a site's own is."""

import subprocess
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("inventory", "checks", "provision", "systemd")
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def needed() -> list[PurePosixPath]:
    files = (p.relative_to(ROOT) for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file())
    return [PurePosixPath(p) for p in files if p.suffix != ".pyc" and "_vars" not in p.parts[1:2]]


def test_every_kind_of_data_file_is_packaged() -> None:
    kinds = {PurePosixPath(pattern).suffix for pattern in SETUP["package-data"]["*"]} | {".py"}
    assert [str(p) for p in needed() if p.suffix not in kinds] == []


def test_every_module_is_in_a_package() -> None:
    folders = {p.parent for p in needed() if p.suffix == ".py" and p.parts[0] != "systemd"}
    assert [str(f) for f in folders if not (ROOT / f / "__init__.py").is_file()] == []


def test_systemd_is_data() -> None:
    assert not (ROOT / "systemd" / "__init__.py").exists()


def test_top_level_modules_are_named() -> None:
    assert set(SETUP["py-modules"]) == {p.stem for p in ROOT.glob("*.py")} - {"setup"}


@pytest.mark.process
@pytest.mark.lab
def test_the_wheel_holds_it_all(tmp_path: Path) -> None:
    site = ROOT / "inventory" / "hosts.yml"
    built = subprocess.run(
        [find_uv_bin(), "build", "--wheel", "--quiet", "--out-dir", tmp_path, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"no setuptools to build with: {built.stderr.strip()[-200:]}")
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    wanted = {str(p).replace("systemd/", "provision/_systemd/") for p in needed() if Path(p) != site}
    assert wanted - {"inventory/hosts.yml", "inventory/hosts.ini"} - names == set()
    assert not any(n.startswith(("systemd/", "tests/")) or n == "inventory/hosts.yml" for n in names)
