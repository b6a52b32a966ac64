"""Files on the operator's machine, replaced as a whole or not at all."""

import contextlib
import os
from pathlib import Path

from inventory.errors import UsageError

__all__ = ["replace_text"]


def replace_text(path: Path, text: str, *, hint: str) -> None:
    """Write beside it, fsync, rename; an existing file's mode stays. Raises UsageError with ``hint``."""
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temp.open("wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temp.chmod(path.stat().st_mode & 0o7777)
        temp.replace(path)
    except OSError as e:
        with contextlib.suppress(OSError):
            temp.unlink()
        raise UsageError(f"cannot write {path}: {e.strerror}", hint=hint) from e
