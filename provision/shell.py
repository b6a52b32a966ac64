"""The one way to a host. Commands are argv tuples; quoting happens once, inside the implementation."""

from dataclasses import dataclass
from typing import Protocol

from inventory.model import Host

__all__ = ["Result", "Shell"]


@dataclass(frozen=True)
class Result:
    argv: tuple[str, ...]
    exit: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.exit == 0

    def tail(self, lines: int = 10) -> str:
        return "\n".join((self.stderr or self.stdout).strip().splitlines()[-lines:])


class Shell(Protocol):
    """One open connection to one host, used by one thread."""

    @property
    def host(self) -> Host: ...

    def run(
        self,
        argv: tuple[str, ...],
        *,
        timeout: float,
        sudo: bool = True,
        stdin: bytes | None = None,
        check: bool = True,
    ) -> Result:
        """Run and wait. ``timeout`` seconds are enforced on the host, so no process is left behind.

        Raises ChangeFailed when ``check`` and the exit is not 0, HostUnreachable when the link is lost.
        """

    def read(self, path: str) -> bytes | None:
        """The file's bytes as root, or None when it does not exist."""

    def write(self, path: str, data: bytes, *, mode: int = 0o644, owner: str = "root:root") -> None:
        """Write as root: temp file beside it, fsync, rename."""
