"""`invoke fleet-lock`: who works on these hosts now; ending the lock of a run that can't be asked."""

import json
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from inventory.errors import EyasError, UsageError
from inventory.model import Host
from provision import layout
from provision.gather import gather, tell_lost
from provision.observe import probe
from provision.rollout.fleetlock import local_holder
from provision.run import Flags
from provision.shell import Shell

__all__ = ["fleet_locks"]

#: Ends the process that holds the host's lock; the run that held it meets LockHeld before its next act.
_RELEASE = (
    'inode=$(stat -c %i "$1" 2>/dev/null) || exit 0; '
    'awk -v i=":$inode" \'$2 == "FLOCK" && $4 == "WRITE" && substr($6, length($6) - length(i) + 1) == i '
    '{ print $5 }\' /proc/locks | while read -r pid; do kill "$pid" && echo "$pid"; done'
)


def fleet_locks(action: str, hosts: Sequence[Host], fleet: str, flags: Flags) -> int:
    if action not in {"status", "release"}:
        raise UsageError(
            f"{action or 'nothing'!r} is no action", hint="invoke fleet-lock status|release --limit P"
        )
    answers = gather(hosts, _release if action == "release" else _holder, flags)
    lost, code = tell_lost(answers)
    listed = [{"host": h.name, "holder": a} for h, a in answers if not isinstance(a, EyasError)]
    here = local_holder(fleet)
    if flags.as_json:
        print(json.dumps({"schema": 1, "action": action, "here": here, "hosts": listed, "unreachable": lost}))
        return code
    out = Console(highlight=False, soft_wrap=True, markup=False)
    out.print(f"this machine: {_told(here) if here else 'no run of this fleet'}")
    for h, a in answers:
        if not isinstance(a, EyasError):
            verb = "taken away from " if action == "release" and a else ""
            out.print(f"{h.name}: {verb}{_told(a) if a else 'free'}")
    return code


def _holder(shell: Shell) -> dict[str, Any] | None:
    return probe(shell).value("eyas.lock_holder", dict)


def _release(shell: Shell) -> dict[str, Any] | None:
    held = _holder(shell)
    if held is not None:
        shell.run(("sh", "-c", _RELEASE, "sh", f"{layout.LOCK}/flock"), timeout=30)
    return held


def _told(o: dict[str, Any]) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(o["since"])) if "since" in o else "?"
    process = f", process {o['pid']}" if "pid" in o else ""
    return f"{o.get('what', '?')}, by {o.get('who', '?')}{process}, since {since}"
