"""The one way to a host. Commands are argv tuples; quoting happens once, inside the implementation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inventory.model import Host

__all__ = ["Result", "Session", "Shell"]


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


class Session(Protocol):
    """A command that stays open: the host lock lives exactly as long as one of these."""

    def readline(self, *, timeout: float) -> str: ...
    def send(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...


class Shell(Protocol):
    """One open connection to one host. Several threads may run commands on it at once."""

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
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        """Run and wait. ``timeout`` seconds are enforced on the host, so no process is left behind.

        ``on_line`` gets each line of standard output as it comes (progress of long work).
        Raises ChangeFailed when ``check`` and the exit is not 0, HostUnreachable when the link is lost.
        """

    def session(self, argv: tuple[str, ...]) -> AbstractContextManager[Session]:
        """Start as root and keep open; closing ends it on the host."""

    def read(self, path: str) -> bytes | None:
        """The file's bytes as root, or None when it does not exist."""

    def write(self, path: str, data: bytes, *, mode: int = 0o644, owner: str = "root:root") -> None:
        """Write as root: temp file beside it, fsync, rename. The folder is made when missing."""

    def push(
        self,
        local: Path,
        remote: str,
        *,
        files: Sequence[str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """Copy a folder (or these files of it) to ``remote`` with rsync.

        Resumable; readable by all, owned by root when done. Without ``files`` the remote folder becomes
        equal to the local one.
        """

    def answers(self, *, within: float) -> bool:
        """Whether the other end of this very connection says something within so many seconds."""

    def close(self) -> None:
        """End the connection; who waits for a command on it gets HostUnreachable."""

    def reconnect(self, *, deadline: float) -> None:
        """Wait up to ``deadline`` seconds for the host to answer again (after a reboot)."""


def lines_of(chunks: Iterator[bytes]) -> Iterator[str]:
    """Split a byte stream into text lines; a carriage return (progress bars) ends a line too."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            if line:
                yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
