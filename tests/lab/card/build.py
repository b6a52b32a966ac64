"""Compile the card and lay it over a root file system; everything is cached by what it was made from."""

import hashlib
import shutil
import subprocess
import zipapp
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inventory.errors import ChangeFailed
from tests.lab import mounts
from tests.lab.card.debs import packages, write_repository
from tests.lab.needs import cache_dir, ensure_packages
from tests.lab.profiles import Profile, drivers
from tests.lab.rootfs import locked

__all__ = ["card_layer", "compile_library", "driver_layer", "layers", "nvidia_smi"]

HERE = Path(__file__).resolve().parent
SOURCES = ("nvml.c", "smi/*.py", "debs.py", "build.py", "drivers.toml")
Say = Callable[[str], None]


def layers(base: Path, profile: Profile, *, yes: bool = False, say: Say = print) -> list[Path]:
    """Overlay layers of a host with that profile, topmost first."""
    card = card_layer(yes=yes, say=say)
    if not profile.packages:
        return [card, base]
    return [driver_layer(base, card, profile, say=say), card, base]


def compile_library(out: Path, branch: int) -> None:
    """The NVML stand-in of a driver branch. ChangeFailed with the compiler's words."""
    strict = ["-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-s", "-Wl,-soname,libnvidia-ml.so.1"]
    _cc(*strict, *shared, f"-DBRANCH={branch}", "-o", str(out), str(HERE / "nvml.c"))


def _cc(*args: str) -> None:
    done = subprocess.run(["gcc", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChangeFailed(f"gcc failed: {done.stderr.strip()[-600:]}", hint="apt-get install gcc libc6-dev")


def card_layer(*, yes: bool = False, say: Say = print) -> Path:
    """The apt repository of stand-in drivers, as a layer; built in some seconds when the cache lacks it."""
    text = b"\0".join(path.read_bytes() for name in SOURCES for path in sorted(HERE.glob(name)))
    path = cache_dir() / "card" / f"repository-{hashlib.sha256(text).hexdigest()[:12]}"
    if not path.exists():
        ensure_packages(["gcc", "libc6-dev"], yes)
        say("building the simulated card and its driver packages (once, some seconds)")
        _once(path, _build_repository)
    return path


def driver_layer(base: Path, card: Path, profile: Profile, *, say: Say = print) -> Path:
    """What installing the profile's driver packages changes, as a layer."""
    text = "\0".join([base.name, card.name, *profile.packages, "", *profile.enable])
    name = f"{profile.packages[0]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    path = cache_dir() / "card" / name
    if not path.exists():
        say(f"installing {', '.join(profile.packages)} (once)")
        _once(path, lambda partial: _install(partial, base, card, profile))
    return path


def _once(path: Path, build: Callable[[Path], Any]) -> None:
    """Build beside the final name under a lock and rename; what an earlier death left is swept away."""
    with locked(path.parent / ".lock"):
        if path.exists():
            return
        partial = path.with_name(path.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        build(partial)
        partial.rename(path)


def _build_repository(partial: Path) -> None:
    debs = []
    parts = partial / "parts"
    nvidia_smi(parts / "nvidia-smi")
    for driver in drivers().values():
        mine = parts / str(driver["branch"])
        mine.mkdir(parents=True)
        compile_library(mine / "libnvidia-ml.so", driver["branch"])
        for kind, licence in (("open", "Dual MIT/GPL"), ("proprietary", "NVIDIA")):
            _module(mine / f"nvidia-{kind}.ko", driver["version"], licence)
        debs += list(packages(driver, mine))
    write_repository(debs, partial / "opt/eyas-lab/apt")
    shutil.rmtree(parts)


def nvidia_smi(out: Path) -> None:
    """One executable file: a zip of the package with Python's own launcher."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        shutil.copytree(HERE / "smi", Path(folder) / "smi", ignore=shutil.ignore_patterns("__pycache__"))
        main = "import sys\nfrom smi.main import main\nsys.exit(main(sys.argv[1:]))\n"
        (Path(folder) / "__main__.py").write_text(main)
        zipapp.create_archive(folder, out, "/usr/bin/python3")


def _module(out: Path, version: str, licence: str) -> None:
    """An object file that modinfo and depmod read as a kernel module."""
    source = out.with_suffix(".c")
    info = "\\0".join(["", "name=nvidia", f"version={version}", f"license={licence}", "vermagic=lab SMP"])
    source.write_text(f'const char info[] __attribute__((section(".modinfo"), used)) = "{info}";\n')
    _cc("-c", "-o", str(out), str(source))


def _install(partial: Path, base: Path, card: Path, profile: Profile) -> None:
    """Apt itself, in a chroot on an overlay whose upper side becomes the layer."""
    work, root = partial.with_name(partial.name + ".work"), partial.with_name(partial.name + ".root")
    for folder in (work, root):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    partial.chmod(0o755)
    mounts.mount(
        "eyas-lab", root, "overlay", data=f"lowerdir={card}:{base},upperdir={partial},workdir={work}"
    )
    try:
        steps = ["apt-get -q update", f"apt-get -q -y install {' '.join(profile.packages)}"]
        steps += [f"systemctl enable {unit}" for unit in profile.enable]
        done = subprocess.run(
            ["chroot", str(root), "sh", "-ec", "; ".join(steps)],
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "DEBIAN_FRONTEND": "noninteractive",
                "LC_ALL": "C.UTF-8",
            },
        )
    finally:
        mounts.umount(root)
        root.rmdir()
        shutil.rmtree(work, ignore_errors=True)
    if done.returncode:
        raise ChangeFailed(f"installing {profile.packages} failed:\n{(done.stdout + done.stderr)[-800:]}")
