"""What the lab needs of the machine it runs on, and how to get it."""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from inventory.errors import ChangeFailed, CheckRefused

__all__ = ["cache_dir", "ensure_packages", "missing_packages", "require_lab", "why_no_lab"]

# apt package -> a program or file that shows it is there.
SHOWN_BY: Mapping[str, str] = {
    "mmdebstrap": "mmdebstrap",
    "iproute2": "ip",
    "util-linux": "unshare",
    "openssh-client": "ssh-keygen",
    "gcc": "gcc",
    "libc6-dev": "/usr/include/stdio.h",
    "rsync": "rsync",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "ubuntu-keyring": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/eyas/lab``: root file systems, compiled cards and the labs themselves."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eyas" / "lab"


def why_no_lab() -> str:
    """Why this machine can't hold a lab; empty when it can."""
    if platform.system() != "Linux":
        return f"the lab needs Linux namespaces; this is {platform.system()}"
    if os.geteuid() != 0:
        return "the lab makes namespaces, mounts and a bridge: it needs root"
    if platform.machine() != "x86_64":
        return f"the lab's root file system and card are x86_64; this is {platform.machine()}"
    return ""


def require_lab() -> None:
    """CheckRefused with the reason when this machine can't; else root's tools are on PATH afterwards."""
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if reason := why_no_lab():
        raise CheckRefused(reason, hint="run it as root on a Linux x86_64 machine, e.g. with sudo")


def missing_packages(packages: Iterable[str]) -> list[str]:
    """Those whose tool isn't here. A package unknown to SHOWN_BY is looked up as a program."""
    return [p for p in packages if not _there(SHOWN_BY.get(p, p))]


def _there(shown_by: str) -> bool:
    if shown_by.startswith("/"):
        return Path(shown_by).exists()
    return shutil.which(shown_by) is not None


def ensure_packages(packages: Iterable[str], yes: bool) -> None:
    """Install what is missing with apt, asking first unless ``yes``; without a terminal nobody is asked."""
    if not missing_packages(packages):
        return
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / "apt.lock").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _ensure(missing_packages(packages), yes)


def _ensure(missing: list[str], yes: bool) -> None:
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if not shutil.which("apt-get"):
        raise CheckRefused(
            f"missing: {', '.join(missing)}", hint="install these packages (Debian's names) and run it again"
        )
    if not (yes or _agreed(missing)):
        raise CheckRefused(
            f"missing: {', '.join(missing)}", hint=f"{' '.join(command)}, or the same command with --yes"
        )
    _install(command)


def _agreed(missing: list[str]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"The lab needs {', '.join(missing)}. Install with apt-get? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _install(command: list[str]) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "update", "-q"], command):
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ChangeFailed(
                f"{' '.join(argv)} failed: {(done.stderr or done.stdout).strip()[-400:]}",
                hint="mend apt, then run it again",
            )
