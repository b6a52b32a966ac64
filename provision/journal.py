"""What was done: one JSON line an event, written before the act, kept on the operator's machine."""

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from inventory.errors import ChangeFailed

__all__ = ["Journal", "operator"]


def operator() -> str:
    """Who runs this; the number where the system has no name for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


class Journal:
    """Append-only; each line is flushed to disk before the act it announces."""

    def __init__(self, path: Path | None = None) -> None:
        state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "eyas"
        self.path = path or state / "journal" / f"{time.strftime('%Y-%m')}.jsonl"
        self._who = f"{operator()}@{socket.gethostname()}"

    def write(self, event: str, **words: Any) -> None:
        """Raises ChangeFailed when it can't be kept: what nobody could read afterwards is not begun."""
        line = json.dumps({"time": round(time.time(), 3), "who": self._who, "event": event, **words})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as f:
                fcntl.flock(f, fcntl.LOCK_EX)
                _append(f.fileno(), line.encode() + b"\n")
        except OSError as e:
            raise ChangeFailed(
                f"the journal {self.path} can't be written: {e.strerror}",
                hint="make room or set XDG_STATE_HOME, then run the same command again (a rollout: --resume)",
            ) from e


def _append(fd: int, line: bytes) -> None:
    """Whole and on disk, or not there: a full disk leaves no half of a line that the next would end."""
    end = os.lseek(fd, 0, os.SEEK_END)
    try:
        while line:
            line = line[os.write(fd, line) :]
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, end)
        raise
