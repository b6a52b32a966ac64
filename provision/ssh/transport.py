"""Shell over one Fabric connection: sudo once, deadlines on the host, scripts through exec stdin."""

import base64
import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import paramiko

from inventory.errors import ChangeFailed, HostUnreachable
from inventory.model import Host
from provision.shell import Result, Session
from provision.ssh.channel import ChannelSession, Lost, converse
from provision.ssh.opening import open_connection
from provision.ssh.options import SshOptions
from provision.ssh.rsync import copy_to
from provision.ssh.target import Target, target_of

__all__ = ["SshShell", "connect"]

#: Runs argv as root whoever logged in. Exit 97 with a fixed word says "sudo wants a password": then sudo has
#: run nothing and read nothing. Asking it first would cost each command as much again.
_AS_ROOT = (
    'if [ "$(id -u)" = 0 ]; then exec "$@"; fi; '
    'sudo -n -- "$@"; code=$?; '
    "if [ $code = 1 ] && ! sudo -n true 2>/dev/null; then echo eyas-sudo-password >&2; code=97; fi; "
    "exit $code"
)
_WRITE = (
    'set -e; d=$(dirname -- "$1"); [ -d "$d" ] || mkdir -p -- "$d"; umask 077; '
    't=$(mktemp -- "$1.eyas.XXXXXX"); trap \'rm -f -- "$t"\' EXIT; cat >"$t"; '
    'chmod "$2" "$t"; chown "$3" "$t"; sync "$t"; mv -f -T -- "$t" "$1"; trap - EXIT'
)
_WANTS_PASSWORD = 97
_KILL_AFTER = 2


def connect(host: Host, options: SshOptions) -> "SshShell":
    """Open one connection. Raises HostUnreachable with the reason and the line that mends it."""
    target = target_of(host, options)
    shell = SshShell(target, options)
    shell.open()
    return shell


class SshShell:
    """`provision.shell.Shell` over one Fabric connection."""

    def __init__(self, target: Target, options: SshOptions) -> None:
        self._target, self._options = target, options
        self._connection: Any = None
        self._needs_password = False

    @property
    def host(self) -> Host:
        return self._target.host

    def open(self) -> None:
        self._connection = open_connection(self._target, self._options)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- commands

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
        bounded = ("timeout", "-k", str(_KILL_AFTER), str(max(1, round(timeout))), *argv)
        start = time.monotonic()
        code, out, err = self._exec(bounded, sudo, stdin, timeout + 30, on_line)
        if sudo and code == _WANTS_PASSWORD and "eyas-sudo-password" in err and "sudo: " not in err:
            code = 1  # sudo ran it: this command is allowed without a password, others aren't
        elif sudo and code == _WANTS_PASSWORD and "eyas-sudo-password" in err:
            self._options.sudo_password(self.host.name)
            self._needs_password = True
            code, out, err = self._exec(bounded, sudo, stdin, timeout + 30, on_line)
            if code == 1 and "incorrect password" in err:
                raise HostUnreachable("sudo refused the password", host=self.host.name)
        result = Result(argv, code, out, err, time.monotonic() - start)
        if check and not result.ok:
            why = f"timed out after {timeout:.0f} s" if code in {124, 137} else f"exit {code}"
            raise ChangeFailed(f"{_short(argv)}: {why}\n{result.tail()}".rstrip(), host=self.host.name)
        return result

    def _line(self, argv: Sequence[str], sudo: bool) -> tuple[str, bytes]:
        """The one place where words become a command line, and what must be sent before its stdin."""
        if not sudo:
            return shlex.join(argv), b""
        if self._needs_password:
            password = self._options.sudo_password(self.host.name)
            return shlex.join(["sudo", "-k", "-S", "-p", "", "--", *argv]), password.encode() + b"\n"
        return shlex.join(["sh", "-c", _AS_ROOT, "sh", *argv]), b""

    def _open_channel(self, argv: Sequence[str], sudo: bool) -> tuple[paramiko.Channel, bytes]:
        line, prefix = self._line(argv, sudo)
        try:
            channel = self._connection.transport.open_session(timeout=self._options.connect_timeout)
            channel.exec_command(f"LC_ALL=C.UTF-8 {line}")
        except (paramiko.SSHException, OSError, EOFError, AttributeError) as e:
            raise self._lost(e) from e
        return channel, prefix

    def _lost(self, e: BaseException) -> HostUnreachable:
        return HostUnreachable(
            f"the connection was lost: {e or type(e).__name__}",
            hint="run the same command again; it goes on where it stopped",
            host=self.host.name,
        )

    def _exec(
        self,
        argv: Sequence[str],
        sudo: bool,
        stdin: bytes | None,
        deadline: float,
        on_line: Callable[[str], None] | None,
    ) -> tuple[int, str, str]:
        channel, prefix = self._open_channel(argv, sudo)
        try:
            return converse(channel, prefix + (stdin or b""), deadline, on_line)
        except Lost as e:
            raise self._lost(e) from e

    @contextlib.contextmanager
    def session(self, argv: tuple[str, ...]) -> Iterator[Session]:
        channel, prefix = self._open_channel(argv, True)
        try:
            if prefix:
                channel.sendall(prefix)
            yield ChannelSession(channel)
        finally:
            channel.close()

    # ---- files

    def read(self, path: str) -> bytes | None:
        got = self.run(
            ("sh", "-c", '[ -e "$1" ] || exit 44; base64 -w0 -- "$1"', "sh", path), timeout=60, check=False
        )
        if got.exit == 44:
            return None
        if not got.ok:
            raise ChangeFailed(f"cannot read {path}: {got.tail(2)}", host=self.host.name)
        return base64.b64decode(got.stdout)

    def write(self, path: str, data: bytes, *, mode: int = 0o644, owner: str = "root:root") -> None:
        self.run(("sh", "-c", _WRITE, "sh", path, f"{mode:o}", owner), timeout=600, stdin=data)

    def push(
        self,
        local: Path,
        remote: str,
        *,
        files: Sequence[str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """Through a staging folder that the login user owns: rsync needs no root and no sudo password."""
        user = self.run(("id", "-un"), timeout=20, sudo=False).stdout.strip()
        self.run(("install", "-d", "-o", user, "-m", "0755", "--", remote), timeout=20)
        self.run(("chown", "-R", f"{user}:", "--", remote), timeout=120)
        accept_new = self._options.accept_new_host_keys
        copy_to(self._target, local, remote, files, on_line, accept_new=accept_new)
        self.run(("chown", "-R", "root:root", "--", remote), timeout=300)

    def answers(self, *, within: float) -> bool:
        """By opening a channel: sshd itself agrees to it, so a busy host does so too."""
        transport = self._connection.transport
        if transport is None:
            return False
        try:
            transport.open_session(timeout=within).close()
        except paramiko.ChannelException:
            return True  # a refusal (MaxSessions) is an answer
        except (paramiko.SSHException, OSError, EOFError):
            return False
        return True

    def reconnect(self, *, deadline: float) -> None:
        end = time.monotonic() + deadline
        self.close()
        while True:
            try:
                self.open()
            except HostUnreachable as e:
                if time.monotonic() > end:
                    raise HostUnreachable(
                        f"not back after {deadline:.0f} s ({e.message})", host=self.host.name
                    ) from e
                time.sleep(1)
            else:
                return


def _short(argv: Sequence[str]) -> str:
    words = [w for w in argv if "\n" not in w and len(w) < 120]
    return shlex.join(words)[:200]
