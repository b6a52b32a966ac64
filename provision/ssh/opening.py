"""A connection that is open: ssh's own configuration, known hosts enforced, dead links known in seconds."""

import contextlib
import shlex
import socket
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection

from inventory.errors import HostUnreachable
from provision.hostkeys import Stamp, UnknownKey, stamp_of, trust
from provision.journal import operator
from provision.ssh.options import SshOptions
from provision.ssh.target import Target

__all__ = ["open_connection"]

#: Where ssh's own configuration says nothing: a question every 15 s, three without an answer are the end.
_ALIVE_S, _ALIVE_MAX = 15, 3


def open_connection(target: Target, options: SshOptions) -> Connection:
    """Raises HostUnreachable with the reason and the line that mends it."""
    host = target.host
    path = target.config_file or Path("~/.ssh/config").expanduser()
    ssh_config = _ssh_config(path, stamp_of(path))
    found = ssh_config.lookup(host.address)
    known = Path(
        target.options.get(
            "UserKnownHostsFile", found.get("userknownhostsfile", "~/.ssh/known_hosts")
        ).split()[0]
    ).expanduser()
    config = Config(ssh_config=ssh_config)
    config.load_ssh_configs = False
    gateway = target.options.get("ProxyJump")
    connection = Connection(
        host.address,
        user=host.user,
        port=host.port if host.port != 22 else None,
        config=config,
        gateway=Connection(gateway, config=config) if gateway else None,
        connect_timeout=options.connect_timeout,
        connect_kwargs={
            "banner_timeout": options.connect_timeout + 5,
            "auth_timeout": 20,
            **({"key_filename": target.key_file} if target.key_file else {}),
        },
        forward_agent=False,
    )
    if isinstance(relay := connection.gateway, Connection):
        with _errors(host.name, known, relay.host, relay.port, relay.user):
            connection.gateway = options.relays.get(relay, lambda c: _open_relay(c, known, options))
    with _errors(host.name, known, host.address, host.port, host.user):
        trust(connection, known, options.accept_new_host_keys)
        connection.open()
    _tune(connection, *_alive({**found, **{k.lower(): v for k, v in target.options.items()}}))
    return connection


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


def _open_relay(relay: Connection, known: Path, options: SshOptions) -> None:
    hop = relay
    while isinstance(hop, Connection):
        trust(hop, known, options.accept_new_host_keys)
        hop.connect_timeout = options.connect_timeout
        hop = hop.gateway
    relay.open()
    _tune(relay)


@contextlib.contextmanager
def _errors(name: str, known: Path, address: str, port: int, user: str | None) -> Iterator[None]:
    by_hand = shlex.join(
        ("ssh", *(("-p", str(port)) if port != 22 else ()), f"{user}@{address}" if user else address)
    )

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
            f"login refused for user {user or operator()} on {address}",
            f"{by_hand} must work first",
        ) from e
    except (TimeoutError, paramiko.SSHException, OSError, EOFError) as e:
        raise fail(f"no SSH connection to {address}:{port}: {_said(e)}", by_hand) from e


def _said(e: BaseException) -> str:
    """The kernel's own word where paramiko wraps it: refused, no route, timed out."""
    if isinstance(e, paramiko.ssh_exception.NoValidConnectionsError):
        words = dict.fromkeys(str(getattr(each, "strerror", "") or each) for each in e.errors.values())
        return ", ".join(words)
    return str(e) or type(e).__name__
