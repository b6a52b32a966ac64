"""One rollout a fleet at a time: a lock file on this machine, and the lock of every host.

The file keeps two runs of one operator apart; the hosts' own locks keep operators on two machines apart.
Both end with the process that holds them, so nothing is left to clean up after a crash.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inventory.errors import LockHeld
from provision.journal import operator
from provision.rollout.record import rollouts_dir

__all__ = ["fleet_lock", "local_holder"]


def _path(fleet: str) -> Path:
    return rollouts_dir() / f".{hashlib.sha256(fleet.encode()).hexdigest()[:12]}.lock"


@contextlib.contextmanager
def fleet_lock(fleet: str, what: str) -> Iterator[None]:
    """Hold it for the block. Raises LockHeld with process, time and what for."""
    path = _path(fleet)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise LockHeld(
                f"another run works on this fleet: {_told(path)}", hint="invoke fleet-lock status"
            ) from e
        f.truncate(0)
        f.write(json.dumps({"pid": os.getpid(), "who": operator(), "since": time.time(), "what": what}))
        f.flush()
        yield
        f.truncate(0)


def local_holder(fleet: str) -> dict[str, Any] | None:
    """Who on this machine holds the fleet's lock now; None when it is free."""
    path = _path(fleet)
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ValueError):
                found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                return found
            return {"what": "unknown"}
    return None


def _told(path: Path) -> str:
    try:
        o = json.loads(path.read_text(encoding="utf-8"))
        since = time.strftime("%H:%M:%S", time.localtime(o["since"]))
        return f"{o['what']}, by {o['who']}, process {o['pid']}, since {since}"
    except (ValueError, KeyError, OSError):
        return "it didn't say which"
