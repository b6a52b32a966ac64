"""Files to a host by rsync over plain ssh, which the same target describes."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from inventory.errors import ChangeFailed
from provision.shell import lines_of
from provision.ssh.target import Target

__all__ = ["copy_to"]

_RSYNC = {
    11: "is the host's disk full? df -h on it",
    12: "is rsync installed on the host? apt-get install rsync there",
    127: "is rsync installed on the host? apt-get install rsync there",
    30: "the link stalled for 60 s; run again, it goes on where it stopped",
    255: "ssh failed; try the same host with plain ssh",
}


def copy_to(
    target: Target,
    local: Path,
    remote: str,
    files: Sequence[str] | None,
    on_line: Callable[[str], None] | None,
    *,
    accept_new: bool,
) -> None:
    """``files``: names below ``local``; None: all, and what is not there is removed. Raises ChangeFailed."""
    login = f"{target.host.user}@{target.host.address}" if target.host.user else target.host.address
    remote_shell = shlex.join(target.openssh(accept_new))
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
            "rsync is not installed on this machine", hint="apt-get install rsync", host=target.host.name
        ) from e
    if p.returncode:
        raise ChangeFailed(
            f"rsync to {remote} ended with {p.returncode}: {tail[-600:].strip()}",
            hint=_RSYNC.get(p.returncode, ""),
            host=target.host.name,
        )
