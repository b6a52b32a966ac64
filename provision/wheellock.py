"""Make a wheel lock: uv resolves an engine for the target's Python and platform, from metadata alone.

Nothing big is downloaded and nothing is built; only wheels count, so "no wheel for this platform" is found
here and not on the host. Where wheels come from is uv's own configuration (``UV_DEFAULT_INDEX``, uv.toml) or
a local wheelhouse; no index or path is written into the lock.
"""

import datetime as dt
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from uv import find_uv_bin

from inventory.defaults import PLATFORM, PYTHON
from inventory.errors import ChangeFailed, CheckRefused, EyasError, HostUnreachable, UsageError
from inventory.locks import MARKER, SCHEMA, Target, WheelLock, accelerator, parse_lock
from provision.localfile import replace_text

__all__ = ["ENGINES", "PLATFORM", "PYTHON", "LockInfo", "compile_lock", "write_lock"]

ENGINES = ("sglang", "vllm")
_TIMEOUT_S = 900
_OFFLINE = "set UV_DEFAULT_INDEX to an index you can reach, or use --find-links DIR --no-index"
_WHEELHOUSE = "add a wheel that fits to the wheelhouse, or drop the package with an override"

#: What uv says (0.13), the class of error it is, and what to do about it. The first match counts.
_SAID: tuple[tuple[str, type[EyasError], str], ...] = (
    ("invalid value .* for '--python-platform", UsageError, f"name a platform like {PLATFORM}"),
    ("invalid value .* for '--python-version", UsageError, f"name a Python like {PYTHON}"),
    ("Couldn't parse requirement", UsageError, "write requirements like name==1.2.3"),
    ("Failed to read `--find-links`", UsageError, "name a folder of wheels"),
    ("Unauthorized|Forbidden", HostUnreachable, "give uv the index's credentials (UV_INDEX_*, netrc)"),
    ("network was disabled", HostUnreachable, "unset UV_OFFLINE"),
    ("Failed to fetch|error sending request|dns error|timed out", HostUnreachable, _OFFLINE),
    (
        "Python version .* does not satisfy|requires Python ",
        CheckRefused,
        "choose a Python it supports: --python",
    ),
    (
        "no usable wheels|no wheels with a matching",
        CheckRefused,
        "choose another version, --python, --platform",
    ),
    ("there (is|are) no versions? of|only .* available", CheckRefused, "choose a published version"),
    ("not found in the provided package locations", CheckRefused, _WHEELHOUSE),
    ("not found in the package registry", CheckRefused, "correct the name, or add the index that has it"),
    ("No solution found", CheckRefused, "loosen the requirement that uv names"),
)


@dataclass(frozen=True)
class LockInfo:
    """The lock, where it was written, whether that changed the file, and how long resolving took."""

    lock: WheelLock
    path: Path
    changed: bool
    seconds: float


def compile_lock(
    requirements: Sequence[str],
    *,
    python: str = PYTHON,
    platform: str = PLATFORM,
    find_links: Path | None = None,
    no_index: bool = False,
    overrides: Sequence[str] = (),
    output: Path,
    made_by: str = "",
) -> LockInfo:
    """Resolve ``requirements`` (lines of a requirements file) into a lock.

    ``overrides`` replace a requirement wherever it appears; ``name ; sys_platform == 'never'`` drops it.
    ``output`` is a file, or an existing folder in which the lock gets its own name. The file is replaced only
    as a whole, and left alone when it already pins the same set. Raises UsageError, HostUnreachable (the
    index) or CheckRefused (no such version, no wheel that fits).
    """
    _check(requirements, python, find_links)
    started = time.monotonic()
    ask = Resolver(python, platform, find_links, no_index)
    pins = ask.pins(requirements, overrides)
    packages = _packages(pins)
    target = _target(requirements, packages, python, platform)
    path = output / f"{target.name}.txt" if output.is_dir() else output
    lock = parse_lock(_header(target, made_by, ask.download_bytes(pins)) + pins, path)
    changed = write_lock(lock, path)
    return LockInfo(lock, path, changed, time.monotonic() - started)


def _check(requirements: Sequence[str], python: str, find_links: Path | None) -> None:
    if not requirements:
        raise UsageError("nothing to lock", hint="name --engine and --engine-version, or --requirement FILE")
    if not re.fullmatch(r"3\.\d{1,2}", python):
        raise UsageError(f"Python {python!r} is not a version like 3.12", hint="--python 3.12")
    if find_links is not None and not find_links.is_dir():
        raise UsageError(f"{find_links} is not a folder of wheels", hint="name a folder with --find-links")
    for line in requirements:
        _requirement(line)


def _requirement(line: str) -> Requirement:
    try:
        wanted = Requirement(line)
    except InvalidRequirement as e:
        raise UsageError(f"requirement {line!r}: {str(e).splitlines()[0]}", hint="name==1.2.3") from e
    if wanted.url:
        raise UsageError(
            f"requirement {line!r} names a URL, which no other host has", hint="use --find-links"
        )
    return wanted


@dataclass(frozen=True)
class Resolver:
    """uv's resolver, for one Python and platform; ``find_links``: a folder to look in as well, or alone."""

    python: str
    platform: str
    find_links: Path | None
    no_index: bool

    def pins(self, requirements: Sequence[str], overrides: Sequence[str]) -> str:
        """What uv answers: sorted ``name==version`` lines with hashes."""
        plain = ("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url")
        return self._ask(requirements, overrides, "lock.txt", (*plain, "--no-emit-find-links"))

    def download_bytes(self, pins: str) -> int | None:
        """Of these pins' wheels, the largest where several fit. None: the index does not tell sizes."""
        bare = [f"{name}=={version}" for name, version in _packages(pins).items()]
        try:
            told = self._ask(bare, (), "pylock.toml", ("--no-deps", "--format", "pylock.toml"))
            sizes = [max(int(w["size"]) for w in p["wheels"]) for p in tomllib.loads(told)["packages"]]
        except (EyasError, KeyError, TypeError, ValueError):
            return None
        return sum(sizes)

    def _ask(
        self, requirements: Sequence[str], overrides: Sequence[str], output: str, options: Sequence[str]
    ) -> str:
        with tempfile.TemporaryDirectory(prefix="eyas-lock-") as temp:
            folder = Path(temp)
            (folder / "lock.in").write_text("\n".join(requirements) + "\n")
            (folder / "overrides.txt").write_text("\n".join(overrides) + "\n")
            argv = [
                _uv(), "pip", "compile", "lock.in", "--override", "overrides.txt", "--output-file", output,
                "--python", sys.executable, "--python-version", self.python,
                "--python-platform", self.platform, "--only-binary", ":all:", *options,
                "--quiet", "--color", "never", *(["--no-index"] if self.no_index else []),
                *(["--find-links", str(self.find_links.resolve())] if self.find_links else []),
            ]  # fmt: skip
            _run(argv, folder, no_index=self.no_index)
            return (folder / output).read_text()


def _uv() -> str:
    try:
        return find_uv_bin()
    except FileNotFoundError as e:
        raise UsageError("uv, which makes locks, is not installed", hint="./eyas check makes .venv") from e


def _run(argv: Sequence[str], folder: Path, *, no_index: bool) -> None:
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    try:
        done = subprocess.run(
            argv, cwd=folder, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise HostUnreachable(f"uv gave no answer in {_TIMEOUT_S} s", hint=_OFFLINE) from e
    except OSError as e:
        raise UsageError(f"cannot start {argv[0]}: {e.strerror}", hint="./eyas check makes .venv") from e
    if done.returncode:
        raise _failure(done.stderr, no_index=no_index)


def _failure(stderr: str, *, no_index: bool = False) -> EyasError:
    text = re.sub(r"\s*\[possible values:[^\]]*\]|\s*For more information.*", "", stderr).strip()
    said = re.sub(r"\s*\n\s*", "\n    ", text.removeprefix("error: "))[:1500]
    said = re.sub(r"://[^/\s@]+@", "://***@", said)
    for pattern, kind, hint in _SAID:
        if re.search(pattern, said):
            in_wheelhouse = no_index and kind is CheckRefused and "--python" not in hint
            return kind(f"no lock was made, uv says: {said}", hint=_WHEELHOUSE if in_wheelhouse else hint)
    return ChangeFailed(f"no lock was made, uv says: {said or 'nothing'}", hint="run again with UV_LOG=debug")


def _packages(pins: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)==(\S+)", pins, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def _target(requirements: Sequence[str], packages: Mapping[str, str], python: str, platform: str) -> Target:
    """The engine is the one that was resolved; a lock of anything else is named by its first requirement."""
    first = canonicalize_name(_requirement(requirements[0]).name)
    engine = next((e for e in ENGINES if e in packages), first)
    version = Version(packages[engine]).public if engine in packages else "0"
    return Target(engine, version, accelerator(packages), python, platform)


def _header(target: Target, made_by: str, size: int | None) -> str:
    glibc = f", glibc {target.glibc} or newer" if target.glibc else ""
    told = {"download_bytes": size} if size else {}
    today = dt.datetime.now(dt.UTC).date().isoformat()
    return (
        f"# Wheels of {target.engine} {target.engine_version} ({target.accelerator}) "
        f"for Python {target.python} on {target.machine}{glibc}.\n"
        f"# Made {today}{f' by: {made_by}' if made_by else ''}\n"
        f"{MARKER}{json.dumps({'schema': SCHEMA, **asdict(target), **told})}\n"
    )


def write_lock(lock: WheelLock, path: Path) -> bool:
    """False when the file already pins the same, and tells its size if that is known; it keeps its date."""
    try:
        old = parse_lock(path.read_text(encoding="utf-8"), path) if path.exists() else None
        if old and old.id == lock.id and (old.download_bytes or not lock.download_bytes):
            return False
    except (EyasError, UnicodeDecodeError):
        pass  # a broken lock is replaced
    replace_text(path, lock.text, hint="choose another --output")
    return True
