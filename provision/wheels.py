"""A whole wheelhouse on a host, for others to copy: brought once, verified by the lock on arrival."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inventory.errors import ChangeFailed
from inventory.locks import WheelLock
from provision import layout
from provision.programs import program
from provision.shell import Shell

__all__ = ["WHOLE", "bring_wheels", "verify_wheels"]

#: In a wheelhouse on a host: every wheel of the lock is there and right (systemd/wheels.py).
WHOLE = ".eyas-whole"
DEFAULT_INDEX = "https://pypi.org/simple"
_FETCH_S = 3600

Say = Callable[[str], None]


def bring_wheels(
    shell: Shell, lock: WheelLock, say: Say, *, pushed: Path | None = None, index_url: str | None = None
) -> None:
    """From the folder ``pushed`` of this machine, else from the host's index. ChangeFailed: not whole."""
    if pushed is None:
        _run(shell, lock, "fetch", index_url, say)
        return
    partial = f"{layout.wheelhouse_dir(lock.id)}.partial"
    shell.push(pushed, partial, on_line=lambda line: say(f"wheels: {line.strip()}"))
    verify_wheels(shell, lock, say)


def verify_wheels(shell: Shell, lock: WheelLock, say: Say) -> None:
    """Check what came to the wheelhouse's ``.partial`` name and give it its name; wrong files are removed."""
    _run(shell, lock, "verify", None, say)


def _run(shell: Shell, lock: WheelLock, word: str, index_url: str | None, say: Say) -> None:
    path = f"{layout.ROOT}/lib/wheels.py"
    shell.write(path, program("wheels.py"))
    request = {
        "folder": layout.wheelhouse_dir(lock.id),
        "work": layout.WORK,
        "packages": dict(lock.hashes),
        "index": index_url or DEFAULT_INDEX,
        "python": [int(n) for n in lock.python.split(".")],
        "glibc": int((lock.target.glibc or "2.39").split(".")[1]),
    }
    last: dict[str, Any] = {}

    def on_line(line: str) -> None:
        last.clear()
        last.update(json.loads(line))
        if "done" in last:
            say(f"wheels: {last['done']} of {last['total']}")

    argv = ("/usr/bin/python3", "-sEB", path, word)
    got = shell.run(argv, timeout=_FETCH_S, stdin=json.dumps(request).encode(), check=False, on_line=on_line)
    if not last.get("ok"):
        raise ChangeFailed(f"wheels: {last.get('error') or got.tail(3)}", host=shell.host.name)
