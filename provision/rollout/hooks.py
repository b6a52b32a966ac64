"""Around the switch of one host: take it out of a router, put it back. By a command, or by our own router."""

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from inventory.errors import ChangeFailed, CheckRefused, HostUnreachable, UsageError
from inventory.model import Host
from provision.router.state import NotBehind, Router
from provision.shell import Shell

__all__ = ["RouterHook", "check_hook", "run_hook"]

#: A batch of all backends: each waits until another serves again, as long as an engine may take to start.
_OTHERS_S = 3600

_WORDS = ("host", "address", "port", "deployment")


def check_hook(command: str, option: str) -> None:
    """Raise UsageError for a command that could not even be read."""
    try:
        words = shlex.split(command)
        if command:
            _fill(words, dict.fromkeys(_WORDS, "x"))
    except (ValueError, KeyError, IndexError) as e:
        raise UsageError(
            f"{option} {command!r} can't be read: {e}", hint=f"known words: {', '.join(_WORDS)} in braces"
        ) from e
    if command and not words:
        raise UsageError(f"{option} is empty")


def run_hook(command: str, host: Host, deployment: str, port: int, *, timeout: float = 120) -> None:
    """Run it on this machine, without a shell. Raises ChangeFailed with its last lines."""
    values = {"host": host.name, "address": host.address, "port": str(port), "deployment": deployment}
    argv = _fill(shlex.split(command), values)
    env = {**os.environ, **{f"EYAS_{k.upper()}": v for k, v in values.items()}}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ChangeFailed(f"{argv[0]}: {e}", hint="try the command by hand", host=host.name) from e
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise ChangeFailed(
            f"{shlex.join(argv)} ended with {done.returncode}\n{tail}".rstrip(),
            hint="try the command by hand",
            host=host.name,
        )


def _fill(words: list[str], values: Mapping[str, str]) -> list[str]:
    return [word.format(**values) for word in words]


class RouterHook:
    """Drain and restore through `invoke router`'s router. ``lost(host)`` drops a connection that broke."""

    def __init__(
        self,
        shell: Callable[[], Shell],
        lost: Callable[[], None],
        say: Callable[[str, str], None],
    ) -> None:
        self.shell, self.lost, self.say = shell, lost, say

    def look(self) -> None:
        """Raise unless there is a router that answers: asked before anything is touched."""
        Router(self.shell()).status()

    def drain(self, host: str, patience_s: float) -> None:
        self.say(host, "draining: no new requests, those in flight end")
        self._tell(host, lambda router: router.drain(host, patience_s, others_s=_OTHERS_S))

    def restore(self, host: str) -> None:
        self._tell(host, lambda router: router.restore(host))

    def _tell(self, host: str, act: Callable[[Router], Any]) -> None:
        """ChangeFailed is this host's; a router's host that is away is no reason to wait for this one."""
        try:
            try:
                act(Router(self.shell()))
            except HostUnreachable:
                self.lost()
                act(Router(self.shell()))
        except NotBehind as e:
            self.say(host, f"not through the router: {e.message}")
        except (HostUnreachable, CheckRefused) as e:
            where = f"{e.host}: " if e.host else ""
            raise ChangeFailed(f"{where}{e.message}", hint=e.hint, host=host) from e
