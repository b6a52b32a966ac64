"""What takes minutes to make is kept: built beside, then renamed, so that half of one never counts."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone", "build_once", "cache_root", "readable"]


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/eyas``, by default ``~/.cache/eyas``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eyas"


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Hold the one lock of ``target``; a second process waits here."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return ``target``; when it does not exist, let ``build`` fill an empty folder that then becomes it.

    A second process that wants the same waits. What ``build`` raises passes through and leaves nothing.
    """
    if target.is_dir():
        return target
    with alone(target):
        if target.is_dir():
            return target
        for torn in target.parent.glob(f".{target.name}.*/"):  # a killed builder's; nobody else builds now
            shutil.rmtree(torn, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            build(temporary)
            readable(temporary)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def readable(folder: Path) -> None:
    """Folders 755 and files 644 (755 where executable): they are sent to hosts and read there by others."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
