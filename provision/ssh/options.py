"""What holds for every host of one command line: keys, time-outs, sudo's password, relays."""

import getpass
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from inventory.errors import HostUnreachable
from provision.ssh.relays import Relays

__all__ = ["SshOptions", "ask_on_terminal"]


@dataclass
class SshOptions:
    """What holds for every host of one command line."""

    accept_new_host_keys: bool = False
    connect_timeout: float = 10
    config: Path | None = None
    ask_sudo: Callable[[], str] | None = None
    relays: Relays = field(default_factory=Relays)
    _password: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sudo_password(self, host: str) -> str:
        """Ask once for all hosts; HostUnreachable when nobody can be asked."""
        with self._lock:
            if self._password is None:
                if self.ask_sudo is None:
                    raise HostUnreachable(
                        "sudo wants a password and there is no terminal to ask on",
                        hint="run from a terminal, or give the user NOPASSWD sudo",
                        host=host,
                    )
                self._password = self.ask_sudo()
            return self._password


def ask_on_terminal() -> str:
    return getpass.getpass("sudo password (asked once, kept in memory only): ")
