"""Build the stand-in's wheels, byte for byte the same each time, and their lock.

``python -m tests.lab.engine.build --engine-version 0.33.0 [--output DIR]`` prints where they are.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventory.catalogue import EngineRelease, Retired, load_catalogue
from inventory.locks import WheelLock
from provision.wheellock import compile_lock
from tests.lab.assets.cache import build_once, cache_root
from tests.lab.assets.purewheel import write_wheel
from tests.lab.assets.wheelhouse import pushed_from

__all__ = ["Standin", "build_standin_wheelhouse", "options_of"]

SOURCE = Path(__file__).with_name("vllm")
#: A local version label, so that nobody takes the wheel for the engine.
LABEL = "eyas.standin"
PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_36"


@dataclass(frozen=True)
class Standin:
    """``dir``: the wheels; ``lock``: their lock, in a file named ``vllm-<version>-standin.txt``.

    ``dir`` is where provisioning looks before it downloads, so that ``wheels_from: push`` finds it ready.
    """

    dir: Path
    lock: WheelLock


def build_standin_wheelhouse(
    version: str = "0.33.0", *, python: str = PYTHON, device: str = "cuda", output: Path | None = None
) -> Standin:
    """Wheels of a stand-in for this vLLM version; the lock goes into ``output`` (default: the cache).

    ``device`` "cuda" gives a torch that reports the CUDA of the real pin, "cpu" one that reports none.
    """
    release = load_catalogue().release("vllm", version)
    locks = output or cache_root() / "lab" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    staging = locks / f".{release.version}-standin-wheels"
    staging.mkdir(exist_ok=True)
    for old in staging.glob("*.whl"):
        old.unlink()
    names = [_engine(staging, release), _torch(staging, release, device)]
    lock = compile_lock(
        names,
        python=python,
        platform=PLATFORM,
        find_links=staging,
        no_index=True,
        output=locks / f"vllm-{release.version}-standin.txt",
        made_by="python -m tests.lab.engine.build",
    ).lock
    return Standin(build_once(pushed_from(lock), lambda out: _copy(staging, out)), lock)


def options_of(release: EngineRelease) -> dict[str, Any]:
    """Every flag that the catalogue knows for this version, as the stand-in's parser reads them."""
    rows = [f for f in release.flags.values() if not f.key and f.kind != "positional"]
    flags = [{"names": [f.flag, *f.aliases], "kind": f.kind, "type": f.type, "role": f.role} for f in rows]
    short = [s for s in release.shorthands if not s.json_flag]
    flags += [{"names": [s.flag], "kind": "value", "type": s.type, "role": f"short_{s.role}"} for s in short]
    flags += [_older(r) for r in release.retired]
    json_flags = {f.flag for f in release.flags.values() if f.key}
    json_flags |= {s.flag for s in release.shorthands if s.json_flag}
    return {
        "flags": flags,
        "json": sorted(json_flags),
        "spec_keys": {f.role: f.key for f in load_catalogue().engine("vllm").flag if f.key},
        "metrics": dict(release.metrics),
        "retired_keys": sorted(k.key for k in release.retired_keys),
    }


def _older(row: Retired) -> dict[str, Any]:
    """A flag that this version still has and no role stands for: read, without effect here."""
    kind = {True: "value", False: "switch", "optional": "optional"}[row.takes_value]
    role = row.flag.lstrip("-").replace("-", "_")
    return {"names": [row.flag], "kind": kind, "type": "str", "role": role}


def _engine(folder: Path, release: EngineRelease) -> str:
    version = f"{release.version}+{LABEL}"
    files = {
        f"vllm/{p.name}": p.read_bytes() for p in sorted(SOURCE.iterdir()) if p.suffix in {".py", ".toml"}
    }
    files["vllm/VERSION"] = f"{version}\n".encode()
    files["vllm/options.json"] = json.dumps(options_of(release), indent=1, sort_keys=True).encode()
    summary = "A stand-in for tests; it runs no model"
    write_wheel(folder, "vllm", version, files, summary=summary, scripts={"vllm": "vllm.cli:main"})
    return f"vllm=={version}"


def _torch(folder: Path, release: EngineRelease, device: str) -> str:
    cuda = release.stack.cuda if device == "cuda" else None
    version = f"{release.stack.torch}+" + (f"cu{cuda.replace('.', '')}" if cuda else "cpu")
    module = f"from torch import version\n\n__version__ = {version!r}\n"
    files = {"torch/__init__.py": module.encode(), "torch/version.py": f"cuda = {cuda!r}\n".encode()}
    write_wheel(folder, "torch", version, files, summary="A stand-in for tests; it computes nothing")
    return f"torch=={version}"


def _copy(staging: Path, folder: Path) -> None:
    for wheel in _wheels(staging):
        (folder / wheel.name).write_bytes(wheel.read_bytes())


def _wheels(folder: Path) -> Iterable[Path]:
    return sorted(folder.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the stand-in engine's wheels and their lock.")
    parser.add_argument("--engine-version", default="0.33.0", help="the vLLM version to stand in for")
    parser.add_argument("--output", type=Path, help="folder for the lock")
    args = parser.parse_args()
    built = build_standin_wheelhouse(args.engine_version, output=args.output)
    print(f"wheelhouse {built.dir}\nlock       {built.lock.path}")


if __name__ == "__main__":
    main()
