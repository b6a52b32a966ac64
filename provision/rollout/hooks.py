"""Commands of the operator around the switch of one host: take it out of a router, put it back."""

import os
import shlex
import subprocess
from collections.abc import Mapping

from inventory.errors import ChangeFailed, UsageError
from inventory.model import Host

__all__ = ["check_hook", "run_hook"]

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
