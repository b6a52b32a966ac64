"""Wheel locks: each package of an engine's environment with version and hashes, for one Python and platform.

A lock is a requirements file that pip and uv install with ``--require-hashes``. Its first lines say what it
is for; one of them, ``# eyas-lock: {...}``, is for us. ``WheelLock.id`` is a hash of what the lock pins, not
of comments, order or date, so the same set of wheels is the same environment on every host.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from inventory.errors import InventoryError, UsageError
from inventory.nearest import did_you_mean
from inventory.yamlfile import read_text

__all__ = [
    "SHIPPED",
    "Target",
    "WheelLock",
    "accelerator",
    "find_lock",
    "list_locks",
    "lock_for",
    "parse_lock",
    "read_lock",
]

SHIPPED = Path(__file__).parent / "locks"
MARKER = "# eyas-lock: "
SCHEMA = 1

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;]+)(?P<rest>.*)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Target:
    """What a lock is for. ``python`` like "3.12", ``platform`` like "x86_64-manylinux_2_39"."""

    engine: str
    engine_version: str
    accelerator: str
    python: str
    platform: str

    @property
    def name(self) -> str:
        """The lock's name, e.g. ``vllm-0.33.0-cu130-cp312``."""
        return f"{self.engine}-{self.engine_version}-{self.accelerator}-{self.python_tag}"

    @property
    def python_tag(self) -> str:
        """The wheel tag of the Python, e.g. ``cp312``."""
        return "cp" + self.python.replace(".", "")

    @property
    def machine(self) -> str:
        """The CPU architecture, e.g. ``x86_64``."""
        return self.platform.split("-", 1)[0]

    @property
    def glibc(self) -> str | None:
        """The oldest glibc of the host, e.g. "2.39"; None when the platform names none."""
        found = re.search(r"manylinux_(\d+)_(\d+)$", self.platform)
        return f"{found[1]}.{found[2]}" if found else None


@dataclass(frozen=True)
class WheelLock:
    """``packages`` maps normalised names to versions; ``hashes`` to the sha256 of every file allowed.

    ``download_bytes``: of all its wheels for the target; None where that was not known when it was made.
    """

    name: str
    id: str
    target: Target
    packages: Mapping[str, str]
    hashes: Mapping[str, tuple[str, ...]]
    text: str
    path: Path | None = None
    download_bytes: int | None = None

    @property
    def engine(self) -> str:
        return self.target.engine

    @property
    def python(self) -> str:
        return self.target.python


def read_lock(path: Path) -> WheelLock:
    """Read and check a lock. Raises InventoryError naming file and line."""
    return parse_lock(read_text(path), path)


def parse_lock(text: str, path: Path) -> WheelLock:
    """The same for text already read; the file's name is the lock's name."""
    packages: dict[str, str] = {}
    hashes: dict[str, tuple[str, ...]] = {}
    target: Target | None = None
    size: int | None = None
    for number, line in _logical(text):
        place = f"{path}:{number}"
        if line.startswith(MARKER):
            target, size = _target(line.removeprefix(MARKER), place)
        elif line and not line.startswith("#"):
            name, packages_version, found = _pin(line, place)
            if name in packages:
                raise InventoryError(f"{place}: {name} is pinned twice", hint=_REMAKE)
            packages[name], hashes[name] = packages_version, found
    if target is None:
        raise InventoryError(f"{path}: not a wheel lock of eyas (no {MARKER.strip()!r} line)", hint=_REMAKE)
    if not packages:
        raise InventoryError(f"{path}: the lock is empty", hint=_REMAKE)
    identity = _identity(target, packages, hashes)
    return WheelLock(path.stem, identity, target, packages, hashes, text, path, size)


_REMAKE = "make it again with: invoke lock"


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their backslash continuations joined, each with the number it starts on."""
    start, parts = 1, []
    for number, raw in enumerate(text.splitlines(), 1):
        parts.append(raw.strip().removesuffix("\\").strip())
        if not raw.rstrip().endswith("\\"):
            yield start, " ".join(parts).strip()
            start, parts = number + 1, []
    if parts:
        yield start, " ".join(parts)


def _target(text: str, place: str) -> tuple[Target, int | None]:
    try:
        fields: dict[str, Any] = json.loads(text)
        schema, size = fields.pop("schema"), fields.pop("download_bytes", None)
        target = Target(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InventoryError(f"{place}: the lock's own description is broken: {e}", hint=_REMAKE) from e
    if schema != SCHEMA or not all(isinstance(v, str) and v for v in vars(target).values()):
        raise InventoryError(f"{place}: this eyas reads lock schema {SCHEMA}, found {schema}", hint=_REMAKE)
    return target, size if isinstance(size, int) and size > 0 else None


def _pin(line: str, place: str) -> tuple[str, str, tuple[str, ...]]:
    found = _PIN.fullmatch(line)
    if not found:
        raise InventoryError(
            f"{place}: expected name==version with hashes, found {line[:60]!r}", hint=_REMAKE
        )
    words = found["rest"].split()
    digests = [m[1] for w in words if (m := _HASH.fullmatch(w))]
    if not digests or len(digests) != len(words):
        raise InventoryError(f"{place}: {found['name']} has no or a broken sha256 hash", hint=_REMAKE)
    try:
        version = str(Version(found["version"]))
    except InvalidVersion as e:
        raise InventoryError(f"{place}: {e}", hint=_REMAKE) from e
    return canonicalize_name(found["name"]), version, tuple(sorted(digests))


def _identity(target: Target, packages: Mapping[str, str], hashes: Mapping[str, tuple[str, ...]]) -> str:
    pinned = [[n, packages[n], *hashes[n]] for n in sorted(packages)]
    content = {"python": target.python, "machine": target.machine, "pinned": pinned}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def accelerator(packages: Mapping[str, str]) -> str:
    """What the pinned torch computes on: ``cu130``, ``cu128``, ``cpu``; ``any`` without torch.

    Read from torch's local version label when it has one, else from the CUDA runtime that its wheel requires.
    """
    if "torch" not in packages:
        return "any"
    if label := Version(packages["torch"]).local:
        return label
    for package in ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        if package in packages:
            release = Version(packages[package])
            return f"cu{release.major}{release.minor}"
    return "cpu"


def list_locks(root: Path | None = None) -> dict[str, Path]:
    """Lock names and files; ``./inventory/locks`` wins over the ones eyas ships."""
    folders = [root] if root else [Path.cwd() / "inventory" / "locks", SHIPPED]
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.txt")):
            found.setdefault(path.stem, path)
    return found


def find_lock(name: str, *, root: Path | None = None) -> WheelLock:
    """The lock of this name. Raises UsageError with the nearest name when there is none."""
    locks = list_locks(root)
    if name not in locks:
        raise UsageError(
            f"no wheel lock is named {name!r}",
            hint=did_you_mean(name, locks) or "make one: invoke lock --engine vllm --engine-version VERSION",
        )
    return read_lock(locks[name])


def lock_for(
    engine: str, version: str, device: str, *, python: str = "3.12", root: Path | None = None
) -> WheelLock:
    """The one lock of this engine version for ``device`` ("cuda", "cpu") and Python, found by its name.

    Raises UsageError when there is none or, for want of a CUDA version to choose by, more than one.
    """
    tag = "cp" + python.replace(".", "")
    computes = r"cu\d+" if device == "cuda" else re.escape(device)
    pattern = re.compile(rf"{re.escape(f'{engine}-{version}')}-{computes}-{tag}")
    fitting = [name for name in list_locks(root) if pattern.fullmatch(name)]
    if not fitting:
        raise UsageError(
            f"no wheel lock fits {engine} {version} on {device} with Python {python}",
            hint=f"invoke lock --engine {engine} --engine-version {version} --python {python}",
        )
    if len(fitting) > 1:
        names = ", ".join(sorted(fitting))
        raise UsageError(f"several wheel locks fit: {names}", hint=f"set lock: {max(fitting)}")
    return find_lock(fitting[0], root=root)
