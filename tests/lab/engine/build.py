"""Build the stand-in's wheels, byte for byte the same each time, and their lock.

``python -m tests.lab.engine.build --engine-version 0.33.0 [--output DIR]`` prints where they are.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inventory.catalogue import EngineRelease, Retired, load_catalogue
from inventory.locks import WheelLock, read_lock
from provision.localfile import replace_text
from provision.wheellock import compile_lock
from tests.lab.assets.cache import build_once, cache_root
from tests.lab.assets.purewheel import write_wheel
from tests.lab.assets.wheelhouse import download, pushed_from

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
    engine_version: str = "0.33.0",
    *,
    python: str = PYTHON,
    device: str = "cuda",
    client: bool = False,
    ray: str = "",
    output: Path | None = None,
) -> Standin:
    """Wheels of a stand-in for this vLLM version; the lock goes into ``output`` (default: the cache).

    ``device`` "cuda" gives a torch that reports the CUDA of the real pin, "cpu" one that reports none.
    ``client`` adds the real huggingface_hub, which every real engine brings along: without it a host can't
    download weights by itself. ``ray`` adds Ray of this version. Such wheels are fetched with pip once.
    """
    release = load_catalogue().release("vllm", engine_version)
    kind = "standin" + ("" if device == "cuda" else f"-{device}") + ("-client" if client else "")
    kind += "-ray" if ray else ""
    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder)
        names = [_engine(staging, release), _torch(staging, release, device)]
        names += _fetched(staging, python, "huggingface_hub", version("huggingface_hub")) if client else []
        names += _fetched(staging, python, "ray", ray) if ray else []
        lock = compile_lock(
            names,
            python=python,
            platform=PLATFORM,
            find_links=staging,
            no_index=True,
            output=staging / f"vllm-{release.version}-{kind}.txt",
            made_by="python -m tests.lab.engine.build",
        ).lock
        wheels = build_once(pushed_from(lock), lambda out: _copy(staging, out))
    # Two checkouts make two locks of one name: each keeps its own.
    kept = (output or cache_root() / "lab" / "locks" / lock.id[:16]) / f"{lock.name}.txt"
    replace_text(kept, lock.text, hint="make the cache folder writable")
    return Standin(wheels, read_lock(kept))


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
    label = f"{release.version}+{LABEL}"
    files = {
        f"vllm/{p.name}": p.read_bytes() for p in sorted(SOURCE.iterdir()) if p.suffix in {".py", ".toml"}
    }
    files["vllm/VERSION"] = f"{label}\n".encode()
    files["vllm/options.json"] = json.dumps(options_of(release), indent=1, sort_keys=True).encode()
    summary = "A stand-in for tests; it runs no model"
    write_wheel(folder, "vllm", label, files, summary=summary, scripts={"vllm": "vllm.cli:main"})
    return f"vllm=={label}"


def _torch(folder: Path, release: EngineRelease, device: str) -> str:
    cuda = release.stack.cuda if device == "cuda" else None
    label = f"{release.stack.torch}+" + (f"cu{cuda.replace('.', '')}" if cuda else "cpu")
    module = f"from torch import version\n\n__version__ = {label!r}\n"
    files = {"torch/__init__.py": module.encode(), "torch/version.py": f"cuda = {cuda!r}\n".encode()}
    write_wheel(folder, "torch", label, files, summary="A stand-in for tests; it computes nothing")
    return f"torch=={label}"


def _fetched(staging: Path, python: str, name: str, pinned: str) -> list[str]:
    """A real package and all it needs, for the hosts' Python."""
    pin = f"{name}=={pinned}"
    folder = {"huggingface_hub": "hub-client"}.get(name, name)
    kept = cache_root() / "lab" / f"{folder}-{pinned}-{python}"
    _copy(build_once(kept, lambda out: download(out, pin)), staging)
    return [pin]


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
