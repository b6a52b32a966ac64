"""What was done: one JSON line an event, written before the act, kept on the operator's machine."""

import getpass
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

__all__ = ["Journal"]


class Journal:
    """Append-only; each line is flushed to disk before the act it announces."""

    def __init__(self, path: Path | None = None) -> None:
        state = Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")).expanduser() / "eyas"
        self.path = path or state / "journal" / f"{time.strftime('%Y-%m')}.jsonl"
        self._who = f"{getpass.getuser()}@{socket.gethostname()}"

    def write(self, event: str, **words: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "who": self._who, "event": event, **words})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as f:
            f.write(line + "\n")
            f.flush()
            os.fsync(f.fileno())
