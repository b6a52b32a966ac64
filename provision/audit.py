"""The host's own record of what was made the served release: when, by whom. Written before the switch."""

import json
import socket
import time
from typing import Any

from provision import layout
from provision.journal import operator
from provision.shell import Shell

__all__ = ["note_switch", "read_audit", "served_for_good"]

_LAST = 2000


_APPEND = 'mkdir -p "$(dirname "$1")" && printf "%s\\n" "$2" >>"$1" && sync "$1"'


def note_switch(
    shell: Shell, deployment: str, release: str, *, must: bool = True, bench: bool = False
) -> None:
    """Write the line, on disk before the switch; the time is the operator's clock.

    Without ``must`` a line that can't be written stops nothing: on the way back to a release that serves.
    ``bench``: served for a while only, so it is never what a host goes back to.
    """
    who = f"{operator()}@{socket.gethostname()}"
    words = {"event": "bench" if bench else "serve", "deployment": deployment, "release": release}
    line = json.dumps({"time": round(time.time(), 3), "who": who, **words})
    shell.run(("sh", "-c", _APPEND, "sh", layout.AUDIT, line), timeout=30, check=must)


def read_audit(shell: Shell) -> list[dict[str, Any]]:
    """The last entries, oldest first; a line that a crash cut short is left out."""
    got = shell.run(
        ("sh", "-c", 'tail -n "$2" "$1" 2>/dev/null || true', "sh", layout.AUDIT, str(_LAST)), timeout=30
    )
    return [e for e in map(_entry, got.stdout.splitlines()) if e]


def served_for_good(audit: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what a bench served in between."""
    return [e for e in audit if e.get("event") != "bench"]


def _entry(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "release" in found else None
