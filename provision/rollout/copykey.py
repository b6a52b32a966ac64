"""The key of copies between hosts: made for one run, read-only, for one folder, for logins in a few minutes.

Each copy lets it in anew (systemd/copy_key.sh): a source's line says by that host's own clock until when it
holds, and a timer there takes it away, so that an operator who was killed leaves nothing that lasts. Targets
hold the private key in memory while they log in (systemd/copy_from.sh).
"""

import contextlib
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import ChangeFailed
from provision import layout
from provision.programs import program
from provision.shell import Shell

__all__ = ["EVERY", "CopyKey", "allow", "copy_key", "sweep"]

#: In place of a key's name: all of them, on a host whose lock is ours.
EVERY = "every"

_PROGRAM = f"{layout.ROOT}/lib/copy_key.sh"
#: From letting the key in to its login; a copy that has begun goes on for as long as it takes.
_LOGIN_S = 180


@dataclass(frozen=True)
class CopyKey:
    """One run's key pair. ``public`` ends with the name that marks its lines on the hosts."""

    private: bytes
    public: str

    @property
    def name(self) -> str:
        return self.public.rsplit(" ", 1)[-1]


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
        pair = CopyKey(path.read_bytes(), path.with_suffix(".pub").read_text().strip())
    yield pair


def sweep(shell: Shell, name: str = "") -> bool:
    """Take away what runs before this one left, and the key of this name. True: the host can copy."""
    shell.write(_PROGRAM, program("copy_key.sh"))
    return "rsync" in shell.run(("sh", _PROGRAM, "sweep", name), timeout=60).stdout


def allow(source: Shell, key: CopyKey, folder: str) -> str:
    """Let the key read ``folder`` of a host that was swept. Returns the login name it works for."""
    words = ("allow", str(_LOGIN_S), folder, key.public)
    return source.run(("sh", _PROGRAM, *words), timeout=60).stdout.strip()
