"""The same question to many hosts at once: an answer or an error each, none hides the others."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from inventory.errors import ChangeFailed, EyasError
from inventory.model import Host
from provision import layout
from provision.fleet import each_host
from provision.programs import program
from provision.run import Flags, connector
from provision.shell import Shell

__all__ = ["Answers", "gather", "served_now", "tell_lost"]

T = TypeVar("T")
Connect = Callable[[Host], AbstractContextManager[Shell]]
Answers = list[tuple[Host, T | EyasError]]


def gather(
    hosts: Sequence[Host], ask: Callable[[Shell], T], flags: Flags, connect: Connect | None = None
) -> list[tuple[Host, T | EyasError]]:
    """``ask`` on each host, bounded by ``flags.forks``, in the order of ``hosts``."""
    opened: Connect = connect or connector(flags)

    def one(host: Host) -> T | EyasError:
        try:
            with opened(host) as shell:
                return ask(shell)
        except EyasError as e:
            e.host = e.host or host.name
            return e

    return list(zip(hosts, each_host(hosts, one, forks=flags.forks), strict=True))


def served_now(shell: Shell, *, deep: bool = False) -> dict[str, Any]:
    """By deployment: release, counters, differences from the release (systemd/served.py)."""
    words = (layout.STATE, "/etc/systemd/system", f"{layout.ETC}/credentials", *(("--deep",) if deep else ()))
    patience = 6 * 3600 if deep else 90
    got = shell.run(
        ("python3", "-sEB", "-", *words), timeout=patience, stdin=program("served.py"), check=False
    )
    line = next((x for x in got.stdout.splitlines() if x.startswith("EYAS-SERVED ")), "")
    if not line:
        raise ChangeFailed(f"nobody could look at what is served: {got.tail(3)}", host=shell.host.name)
    found: dict[str, Any] = json.loads(line.removeprefix("EYAS-SERVED "))
    return found


def tell_lost(answers: Sequence[tuple[Host, Any]]) -> tuple[list[dict[str, str]], int]:
    """The hosts that gave no answer, for JSON, and the exit code they call for; also told on stderr."""
    lost = [(h, e) for h, e in answers if isinstance(e, EyasError)]
    for _, e in lost:
        sys.stderr.write(f"{e}\n")
    return [{"host": h.name, "error": e.message, "hint": e.hint} for h, e in lost], max(
        (e.exit_code for _, e in lost), default=0
    )
