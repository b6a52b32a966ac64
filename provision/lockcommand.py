"""`invoke lock`: options checked, requirement files read, the lock named by what it resolved to."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from inventory.errors import CheckRefused, UsageError
from inventory.locks import Target, parse_lock
from inventory.nearest import did_you_mean
from provision.wheellock import ENGINES, PLATFORM, PYTHON, LockInfo, compile_lock, write_lock

__all__ = ["lock_engine", "requirement_lines"]


def lock_engine(
    engine: str | None,
    engine_version: str | None,
    *,
    python: str = PYTHON,
    platform: str = PLATFORM,
    device: str | None = None,
    requirement_files: Sequence[str] = (),
    override_files: Sequence[str] = (),
    find_links: str | None = None,
    no_index: bool = False,
    output: str | None = None,
) -> LockInfo:
    """``compile_lock`` for the command line: options checked, files read, the lock named by its content.

    ``device`` ("cuda", "cpu") refuses, before anything is written, a set that computes on the other.
    """
    _check_options(engine, engine_version, device, requirement_files, find_links, no_index=no_index)
    own = [f"{engine}=={engine_version}"] if engine else []
    options = {
        "engine": engine, "engine-version": engine_version, "python": python, "platform": platform,
        "device": device, "requirement": requirement_files, "override": override_files,
        "find-links": "DIR" if find_links else None, "no-index": no_index,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="eyas-lock-") as temp:
        info = compile_lock(
            [*own, *(line for f in requirement_files for line in requirement_lines(Path(f)))],
            python=python,
            platform=platform,
            find_links=Path(find_links) if find_links else None,
            no_index=no_index,
            overrides=[line for f in override_files for line in requirement_lines(Path(f))],
            output=Path(temp),
            made_by=_command(options),
        )
    _check_device(device, info.lock.target)
    wanted = Path(output) if output else Path("inventory/locks")
    path = wanted if wanted.suffix == ".txt" else wanted / f"{info.lock.target.name}.txt"
    return replace(
        info, lock=parse_lock(info.lock.text, path), path=path, changed=write_lock(info.lock, path)
    )


def _check_options(
    engine: str | None,
    version: str | None,
    device: str | None,
    files: Sequence[str],
    find_links: str | None,
    *,
    no_index: bool,
) -> None:
    example = "invoke lock --engine vllm --engine-version 0.33.0"
    if engine is not None and engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is not known", hint=did_you_mean(engine, ENGINES))
    if bool(engine) != bool(version) or not (engine or files):
        raise UsageError("--engine and --engine-version belong together", hint=example)
    if device not in {None, "cuda", "cpu"}:
        raise UsageError(f"device {device!r} is not cuda or cpu", hint="--device cuda")
    if no_index and not find_links:
        raise UsageError("--no-index leaves nowhere to look", hint="add --find-links DIR")


def _check_device(device: str | None, target: Target) -> None:
    found = "cuda" if target.accelerator.startswith("cu") else "cpu"
    if device and device != found:
        raise CheckRefused(
            f"{target.engine} {target.engine_version} resolves to {target.accelerator}, not to {device}",
            hint="a CPU build comes from a wheelhouse: --find-links DIR --no-index --requirement FILE"
            if device == "cpu"
            else "leave the CPU wheelhouse out",
        )


def _command(options: Mapping[str, str | Sequence[str] | bool | None]) -> str:
    """How to make it again, without the folders of the machine it was made on."""
    words = ["invoke lock"]
    for name, value in options.items():
        if isinstance(value, str):
            words.append(f"--{name} {value}")
        elif isinstance(value, Sequence):
            words += [f"--{name} {Path(file).name}" for file in value]
        elif value:
            words.append(f"--{name}")
    return " ".join(words)


def requirement_lines(path: Path) -> list[str]:
    """The lines of a requirements or overrides file, without comments. Raises UsageError for options."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read {path}: {e}", hint="name a requirements file") from e
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in text.splitlines()]
    for line in lines:
        if line.startswith("-"):
            raise UsageError(f"{path}: option {line!r} is not allowed here", hint="write requirements only")
    return [line for line in lines if line]
