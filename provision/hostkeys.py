"""Host keys as OpenSSH keeps them: a key on record or none. Read once a run, looked into by name."""

import base64
import contextlib
import hashlib
from functools import lru_cache
from pathlib import Path

import paramiko
from fabric import Connection
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

__all__ = ["Stamp", "UnknownKey", "known_entries", "stamp_of", "trust"]

_SYSTEM_KNOWN = Path("/etc/ssh/ssh_known_hosts")

Stamp = tuple[int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Changes when the file does; None while there is none."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size


@lru_cache(maxsize=8)
def _known_lines(path: Path, stamp: Stamp | None) -> tuple[dict[str, list[str]], list[str]]:
    """Lines by name, and those with hashed names. No key is looked into: a fleet's file holds thousands."""
    plain: dict[str, list[str]] = {}
    hashed: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if stamp else ():
        names = line.split(" ", 1)[0]
        if names.startswith("|"):
            hashed.append(line)
        elif names[:1] not in {"", "#", "@"}:
            for name in names.split(","):
                plain.setdefault(name, []).append(line)
    return plain, hashed


def known_entries(path: Path, name: str) -> list[HostKeyEntry]:
    """The keys that this file has for the host, as OpenSSH names it."""
    plain, hashed = _known_lines(path, stamp_of(path))
    found = list(plain.get(name, ()))
    for line in hashed:
        kept = line.split(" ", 1)[0]
        with contextlib.suppress(ValueError, IndexError, AssertionError):  # damaged: names nobody
            if paramiko.HostKeys.hash_host(name, kept) == kept:
                found.append(line)
    entries = []
    for line in found:
        with contextlib.suppress(paramiko.SSHException, InvalidHostKey):
            entries.append(HostKeyEntry.from_line(line))
    return [e for e in entries if e is not None and e.key is not None]


def trust(hop: Connection, known: Path, accept_new: bool) -> None:
    """Only keys on record, of this one host; OSError when the record can't be read."""
    at = hop.host if hop.port == 22 else f"[{hop.host}]:{hop.port}"
    for entry in (*known_entries(known, at), *known_entries(_SYSTEM_KNOWN, at)):
        hop.client.get_host_keys().add(at, entry.key.get_name(), entry.key)
    hop.client.set_missing_host_key_policy(_KnownHosts(known, accept_new))


class _KnownHosts(paramiko.MissingHostKeyPolicy):
    """Unknown keys are refused, or recorded when the operator said so."""

    def __init__(self, path: Path, accept: bool) -> None:
        self.path, self.accept = path, accept

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if not self.accept:
            raise UnknownKey(hostname, key)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as f:
            f.write(f"{hostname} {key.get_name()} {key.get_base64()}\n")
        client.get_host_keys().add(hostname, key.get_name(), key)


class UnknownKey(Exception):
    """``name`` showed a key that no record has."""

    def __init__(self, hostname: str, key: paramiko.PKey) -> None:
        super().__init__(hostname)
        self.name = hostname
        digest = hashlib.sha256(key.asbytes()).digest()
        self.fingerprint = "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
