"""Shell over Fabric: known hosts enforced, sudo once, deadlines on the host, scripts through exec stdin.

What Fabric does by default and this module does not: accept any host key, feed a script at one character
per 10 ms, leave a timed-out command running. Each is measured; see DESIGN.md.
"""

import contextlib
import getpass
import os
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import paramiko
from fabric import Config, Connection

from inventory.errors import ChangeFailed, HostUnreachable, UsageError
from inventory.model import Host
from provision.hostkeys import Stamp, UnknownKey, stamp_of, trust
from provision.shell import Result, Session, lines_of

__all__ = ["SshOptions", "SshShell", "connect"]

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
#: Where ssh's own configuration says nothing: a question every 15 s, three without an answer are the end.
_ALIVE_S, _ALIVE_MAX = 15, 3


class _Relays:
    """One connection to each relay (ProxyJump), for all hosts behind it.

    A connection a host would meet the relay's MaxStartups, which refuses at random from the tenth log-in.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._open: dict[str, Connection] = {}
        self._failed: dict[str, tuple[float, Exception]] = {}

    def get(self, relay: Connection, open_it: Callable[[Connection], None]) -> Connection:
        """The open one, or ``relay`` opened now; who waits behind a failed attempt shares its error."""
        key, asked = f"{relay.user}@{relay.host}:{relay.port}", time.monotonic()
        with self._mutex:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key in self._open and self._open[key].is_connected:
                return self._open[key]
            when, error = self._failed.get(key, (0.0, None))
            if error and when > asked:
                raise error
            try:
                open_it(relay)
            except Exception as e:
                self._failed[key] = time.monotonic(), e
                raise
            self._open[key] = relay
            return relay


@dataclass
class SshOptions:
    """What holds for every host of one command line."""

    accept_new_host_keys: bool = False
    connect_timeout: float = 10
    config: Path | None = None
    ask_sudo: Callable[[], str] | None = None
    relays: _Relays = field(default_factory=_Relays)
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


@dataclass(frozen=True)
class _Target:
    """Everything both SSH clients (Fabric here, OpenSSH under rsync) need to reach the same host."""

    host: Host
    config_file: Path | None
    options: dict[str, str]
    key_file: str | None

    @property
    def user(self) -> str | None:
        return self.host.user

    def openssh(self, accept_new: bool) -> list[str]:
        argv = [
            "ssh",
            "-o",
            "BatchMode=yes",
            "-o",
            f"StrictHostKeyChecking={'accept-new' if accept_new else 'yes'}",
        ]
        if self.config_file:
            argv += ["-F", str(self.config_file)]
        if self.key_file:
            argv += ["-i", self.key_file]
        for key, value in self.options.items():
            argv += ["-o", f"{key}={value}"]
        if self.host.port != 22:
            argv += ["-p", str(self.host.port)]
        return argv


def _target(host: Host, options: SshOptions) -> _Target:
    """Read Ansible's SSH variables: key file, and `-F`, `-i`, `-J`, `-o K=V` of the common arguments."""
    words = shlex.split(
        " ".join(str(host.vars.get(f"ansible_ssh_{k}_args", "")) for k in ("common", "extra"))
    )
    config, key = (
        options.config,
        host.vars.get("ansible_ssh_private_key_file") or host.vars.get("ansible_private_key_file"),
    )
    opts: dict[str, str] = {}
    it = iter(words)
    for word in it:
        flag, rest = word[:2], word[2:]
        if flag not in {"-F", "-i", "-J", "-o"}:
            raise UsageError(
                f"ssh argument {word} is not understood",
                hint="use -F, -i, -J or -o KEY=VALUE",
                host=host.name,
            )
        value = rest or next(it, "")
        if flag == "-F":
            config = Path(value)
        elif flag == "-i":
            key = value
        elif flag == "-J":
            opts["ProxyJump"] = value
        else:
            name, _, setting = value.partition("=")
            opts[name] = setting
    return _Target(host, config, opts, str(Path(str(key)).expanduser()) if key else None)


def _alive(config: Mapping[str, Any]) -> tuple[int, int]:
    """What ssh calls ServerAliveInterval (seconds; 0 means ours) and ServerAliveCountMax."""
    found = []
    for key, ours in (("serveraliveinterval", _ALIVE_S), ("serveralivecountmax", _ALIVE_MAX)):
        text = str(config.get(key, ""))
        found.append(int(text) if text.isdigit() and int(text) > 0 else ours)
    return found[0], found[1]


def _tune(connection: Connection, every: int = _ALIVE_S, patience: int = _ALIVE_MAX) -> None:
    connection.transport.set_keepalive(every)
    sock = connection.transport.sock
    if isinstance(sock, socket.socket):
        # Nagle plus delayed ACK costs 35 ms a command.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A dead link is known when a keepalive stays unanswered: the kernel's own limit is 15 minutes.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, every * patience * 1000)


@lru_cache(maxsize=8)
def _ssh_config(path: Path, stamp: Stamp | None) -> paramiko.SSHConfig:
    return paramiko.SSHConfig.from_path(str(path)) if stamp else paramiko.SSHConfig()


def connect(host: Host, options: SshOptions) -> "SshShell":
    """Open one connection. Raises HostUnreachable with the reason and the line that mends it."""
    target = _target(host, options)
    shell = SshShell(target, options)
    shell.open()
    return shell


class SshShell:
    """`provision.shell.Shell` over one Fabric connection."""

    def __init__(self, target: _Target, options: SshOptions) -> None:
        self._target, self._options = target, options
        self._connection: Any = None
        self._needs_password = False

    @property
    def host(self) -> Host:
        return self._target.host

    def open(self) -> None:
        t, host = self._target, self.host
        path = t.config_file or Path("~/.ssh/config").expanduser()
        ssh_config = _ssh_config(path, stamp_of(path))
        found = ssh_config.lookup(host.address)
        known = Path(
            t.options.get(
                "UserKnownHostsFile", found.get("userknownhostsfile", "~/.ssh/known_hosts")
            ).split()[0]
        ).expanduser()
        config = Config(ssh_config=ssh_config)
        config.load_ssh_configs = False
        gateway = t.options.get("ProxyJump")
        connection = Connection(
            host.address,
            user=host.user,
            port=host.port if host.port != 22 else None,
            config=config,
            gateway=Connection(gateway, config=config) if gateway else None,
            connect_timeout=self._options.connect_timeout,
            connect_kwargs={
                "banner_timeout": self._options.connect_timeout + 5,
                "auth_timeout": 20,
                **({"key_filename": t.key_file} if t.key_file else {}),
            },
            forward_agent=False,
        )
        if isinstance(relay := connection.gateway, Connection):
            with self._errors(known, relay.host, relay.port, relay.user):
                connection.gateway = self._options.relays.get(relay, lambda c: self._open_relay(c, known))
        with self._errors(known, host.address, host.port, host.user):
            trust(connection, known, self._options.accept_new_host_keys)
            connection.open()
        _tune(connection, *_alive({**found, **{k.lower(): v for k, v in t.options.items()}}))
        self._connection = connection

    def _open_relay(self, relay: Connection, known: Path) -> None:
        hop = relay
        while isinstance(hop, Connection):
            trust(hop, known, self._options.accept_new_host_keys)
            hop.connect_timeout = self._options.connect_timeout
            hop = hop.gateway
        relay.open()
        _tune(relay)

    @contextlib.contextmanager
    def _errors(self, known: Path, address: str, port: int, user: str | None) -> Iterator[None]:
        name = self.host.name

        def fail(message: str, hint: str) -> HostUnreachable:
            return HostUnreachable(message, hint=hint, host=name)

        try:
            yield
        except paramiko.BadHostKeyException as e:
            at = address if port == 22 else f"[{address}]:{port}"
            raise fail(
                f"the host key of {address} has changed: reinstalled, or not the machine you mean",
                f"if you know why: ssh-keygen -f {known} -R {shlex.quote(at)}",
            ) from e
        except UnknownKey as e:
            raise fail(
                f"the host key of {e.name} is not in {known} ({e.fingerprint})",
                "compare the fingerprint and run again with --accept-new-host-keys",
            ) from e
        except paramiko.AuthenticationException as e:
            raise fail(
                f"login refused for user {user or getpass.getuser()} on {address}",
                f"ssh {address} must work first",
            ) from e
        except (TimeoutError, paramiko.SSHException, OSError, EOFError) as e:
            raise fail(
                f"no SSH connection to {address}:{port}: {e or type(e).__name__}", f"ssh {address}"
            ) from e

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
        errors: list[bytes] = []
        output: list[bytes] = []
        failure: list[BaseException] = []

        def feed() -> None:
            try:
                channel.sendall(prefix + (stdin or b""))
                channel.shutdown_write()
            except (OSError, EOFError) as e:
                failure.append(e)  # the command ended without reading; its exit code tells

        def drain_errors() -> None:
            with contextlib.suppress(TimeoutError, OSError):
                while data := channel.recv_stderr(1 << 16):
                    errors.append(data)

        def chunks() -> Iterator[bytes]:
            while data := channel.recv(1 << 16):
                output.append(data)
                yield data

        channel.settimeout(deadline)
        workers = [threading.Thread(target=f, daemon=True) for f in (feed, drain_errors)]
        for w in workers:
            w.start()
        try:
            for text in lines_of(chunks()):
                if on_line:
                    on_line(text)
            channel.status_event.wait(deadline)
            code = channel.recv_exit_status() if channel.exit_status_ready() else -1
        except (TimeoutError, OSError, EOFError) as e:
            raise self._lost(e) from e
        finally:
            channel.close()
        for w in workers:
            w.join(5)
        if code == -1:
            raise self._lost(ConnectionError("closed without an exit status"))
        return code, b"".join(output).decode("utf-8", "replace"), b"".join(errors).decode("utf-8", "replace")

    @contextlib.contextmanager
    def session(self, argv: tuple[str, ...]) -> Iterator[Session]:
        channel, prefix = self._open_channel(argv, True)
        try:
            if prefix:
                channel.sendall(prefix)
            yield _ChannelSession(channel)
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
        import base64  # noqa: PLC0415

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
        login = f"{self.host.user}@{self.host.address}" if self.host.user else self.host.address
        remote_shell = shlex.join(self._target.openssh(self._options.accept_new_host_keys))
        argv = ["rsync", "-rtL", "--partial", "--chmod=D755,F644", "--info=progress2"]
        argv += ["--files-from=-"] if files is not None else ["--delete"]
        argv += ["--no-human-readable", "--timeout=60", "-e", remote_shell, f"{local}/", f"{login}:{remote}/"]
        try:
            with tempfile.TemporaryFile() as names:
                names.write("\n".join(files or ()).encode())
                names.seek(0)
                p = subprocess.Popen(argv, stdin=names, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            with p:
                assert p.stdout is not None
                assert p.stderr is not None
                fd = p.stdout.fileno()
                for text in lines_of(iter(lambda: os.read(fd, 1 << 14), b"")):
                    if on_line:
                        on_line(text)
                tail = p.stderr.read().decode("utf-8", "replace")
        except FileNotFoundError as e:
            raise ChangeFailed(
                "rsync is not installed on this machine", hint="apt-get install rsync", host=self.host.name
            ) from e
        if p.returncode:
            raise ChangeFailed(
                f"rsync to {remote} ended with {p.returncode}: {tail[-600:].strip()}",
                hint=_RSYNC.get(p.returncode, ""),
                host=self.host.name,
            )
        self.run(("chown", "-R", "root:root", "--", remote), timeout=300)

    def answers(self, *, within: float) -> bool:
        """By opening a channel: sshd itself agrees to it, so a busy host does so too."""
        try:
            self._connection.transport.open_session(timeout=within).close()
        except paramiko.ChannelException:
            return True  # a refusal (MaxSessions) is an answer
        except (paramiko.SSHException, OSError, EOFError, AttributeError):
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


class _ChannelSession:
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel, self._buffer = channel, b""

    def readline(self, *, timeout: float) -> str:
        self._channel.settimeout(timeout)
        while b"\n" not in self._buffer:
            try:
                data = self._channel.recv(4096)
            except TimeoutError:
                return ""
            if not data:
                break
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace")

    def send(self, data: bytes) -> None:
        self._channel.sendall(data)

    def close(self) -> None:
        self._channel.close()

    @property
    def closed(self) -> bool:
        return self._channel.closed or self._channel.exit_status_ready()


_RSYNC = {
    11: "is the host's disk full? df -h on it",
    12: "is rsync installed on the host? apt-get install rsync there",
    127: "is rsync installed on the host? apt-get install rsync there",
    30: "the link stalled for 60 s; run again, it goes on where it stopped",
    255: "ssh failed; try the same host with plain ssh",
}


def _short(argv: Sequence[str]) -> str:
    words = [w for w in argv if "\n" not in w and len(w) < 120]
    return shlex.join(words)[:200]
