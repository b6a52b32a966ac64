"""Weights from host to host: one host takes a model from the hub, the others copy from hosts that have it.

rsync over SSH with a key that is made for this run: it may only read the weights folder, from the source's
side (a forced command) and in time (an expiry in the line itself), and is removed when the run ends, however
it ends. Every copy is verified against the hub's hashes before the folder gets its name.
"""

import contextlib
import secrets
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import ChangeFailed, EyasError, HostUnreachable
from provision import layout
from provision.rollout.tree import Copied
from provision.shell import Shell
from provision.weights import Manifest, verify_copy

__all__ = ["CopyKey", "copy_key", "copy_weights"]

Say = Callable[[str], None]
WEIGHTS = f"{layout.STATE}/weights"
_VALID_S = 12 * 3600
_COPY_S = 6 * 3600
#: rsync's exit codes that say the other side or the way to it failed.
_SOURCE_FAILED = {5, 10, 12, 23, 30, 35, 255}

_ALLOW = (
    'set -e; umask 077; d="$HOME/.ssh"; [ -d "$d" ] || mkdir "$d"; f="$d/authorized_keys"; '
    'touch "$f"; t=$(mktemp "$f.XXXXXX"); cat "$f" >"$t"; [ -z "$(tail -c1 "$t")" ] || echo >>"$t"; '
    'cat >>"$t"; chmod --reference="$f" "$t"; mv -f "$t" "$f"; echo "$(id -un)"'
)
_FORGET = (
    'f="$HOME/.ssh/authorized_keys"; [ -f "$f" ] || exit 0; t=$(mktemp "$f.XXXXXX"); '
    'grep -v -- " $1\\$" "$f" >"$t"; chmod --reference="$f" "$t"; mv -f "$t" "$f"'
)


@dataclass(frozen=True)
class CopyKey:
    """One run's key. ``name`` marks its lines on the hosts; ``private`` goes to the targets' memory only."""

    name: str
    private: bytes
    public: str

    @property
    def folder(self) -> str:
        return f"/run/eyas-{self.name}"


@contextlib.contextmanager
def copy_key() -> Iterator[CopyKey]:
    """Made in a folder only this user can read, gone when the block ends."""
    name = f"copy-{secrets.token_hex(6)}"
    with tempfile.TemporaryDirectory(prefix="eyas-") as folder:
        path = Path(folder) / "key"
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        try:
            subprocess.run(argv, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as e:
            raise ChangeFailed(f"no key could be made: {e}", hint="apt-get install openssh-client") from e
        yield CopyKey(name, path.read_bytes(), path.with_suffix(".pub").read_text().strip())


def allow(source: Shell, key: CopyKey) -> str:
    """Let the key read the weights folder of this host. Returns the login name it works for."""
    until = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + _VALID_S))
    line = f'restrict,expiry-time="{until}",command="rrsync -ro {WEIGHTS}" {key.public}\n'
    got = source.run(("sh", "-c", _ALLOW), timeout=30, sudo=False, stdin=line.encode())
    return got.stdout.strip()


def forget(shell: Shell, key: CopyKey) -> None:
    """Take the key from a source or a target; it may have been either."""
    shell.run(("sh", "-c", _FORGET, "sh", key.name), timeout=30, sudo=False, check=False)
    shell.run(("rm", "-rf", "--", key.folder), timeout=30, check=False)


def host_keys(source: Shell) -> str:
    """known_hosts lines of a source, read over the connection we already trust."""
    host = source.host
    at = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
    got = source.run(("sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"), timeout=20)
    return "".join(f"{at} {' '.join(line.split()[:2])}\n" for line in got.stdout.splitlines() if line.strip())


def copy_weights(target: Shell, source: Shell, login: str, key: CopyKey, m: Manifest, say: Say) -> Copied:
    """One model folder from source to target, verified on arrival. Never raises for what a host can do."""
    try:
        target.run(("install", "-d", "-m", "0700", "--", key.folder), timeout=20)
        target.write(f"{key.folder}/key", key.private, mode=0o600)
        target.write(f"{key.folder}/known_hosts", host_keys(source).encode(), mode=0o600)
    except HostUnreachable as e:
        return Copied.SOURCE if e.host == source.host.name else Copied.TARGET
    except EyasError:
        return Copied.TARGET
    try:
        code = _rsync(target, source, login, key, m, say)
        if code:
            say(f"{m.ref.label}: copy from {source.host.name} ended with {code}")
            return Copied.SOURCE if code in _SOURCE_FAILED else Copied.TARGET
        verify_copy(target, m, say)
    except HostUnreachable:
        return Copied.TARGET
    except ChangeFailed as e:
        say(f"{m.ref.label} from {source.host.name}: {e.message}")
        return Copied.CORRUPT
    return Copied.OK


def _rsync(target: Shell, source: Shell, login: str, key: CopyKey, m: Manifest, say: Say) -> int:
    ssh = ["ssh", "-F", "/dev/null", "-i", f"{key.folder}/key", "-p", str(source.host.port)]
    for option in (
        "IdentitiesOnly=yes", "BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10",
        f"UserKnownHostsFile={key.folder}/known_hosts", "GlobalKnownHostsFile=/dev/null",
        # First where both have it: with AES in the processor twice as fast as OpenSSH's own first choice.
        "Ciphers=^aes128-gcm@openssh.com",
    ):  # fmt: skip
        ssh += ["-o", option]
    inside = m.folder.removeprefix(f"{WEIGHTS}/")
    partial = f"{m.folder}.partial"
    target.run(("install", "-d", "-m", "0755", "--", partial), timeout=20)
    argv: tuple[str, ...] = (
        "rsync",
        "-rt",
        "--partial",
        "--timeout=60",
        "--info=progress2",
        "--no-human-readable",
    )
    argv += ("--no-human-readable", "--exclude=.eyas-verified.json", "-e", shlex.join(ssh))
    argv += (f"{login}@{source.host.address}:{inside}/", f"{partial}/")
    say(f"{m.ref.label}: copying from {source.host.name}")
    got = target.run(
        argv, timeout=_COPY_S, check=False, on_line=lambda line: say(f"{m.ref.label}: {line.strip()}")
    )
    return got.exit
