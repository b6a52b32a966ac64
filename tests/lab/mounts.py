"""mount(2) and friends, so that booting a host doesn't start forty programs."""

import ctypes
import os
from pathlib import Path

__all__ = [
    "BIND",
    "NODEV",
    "NOEXEC",
    "NOSUID",
    "REMOUNT",
    "RO",
    "bind",
    "mount",
    "pivot_root",
    "private",
    "shared",
    "umount",
]

RO, NOSUID, NODEV, NOEXEC, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
REC, PRIVATE, SHARED, DETACH = 16384, 1 << 18, 1 << 20, 2
SYS_PIVOT_ROOT = 155  # x86_64

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str | Path, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    args = [os.fsencode(source), os.fsencode(target), kind.encode() or None]
    _checked(
        _libc.mount(*args, ctypes.c_ulong(flags), data.encode() or None), f"mount {kind} {source} on {target}"
    )


def bind(source: str | Path, target: Path, *, read_only: bool = False) -> None:
    mount(source, target, flags=BIND | REC)
    if read_only:
        mount(source, target, flags=BIND | REMOUNT | RO)


def private(target: Path) -> None:
    """Nothing mounted below is seen in another namespace from now on."""
    mount("none", target, flags=REC | PRIVATE)


def shared(target: Path) -> None:
    """As every booted system has it: systemd hands credentials to a service by a mount that must be seen."""
    mount("none", target, flags=REC | SHARED)


def umount(target: Path) -> None:
    _checked(_libc.umount2(os.fsencode(target), DETACH), f"umount {target}")


def pivot_root(new_root: Path, put_old: Path) -> None:
    _checked(
        _libc.syscall(ctypes.c_long(SYS_PIVOT_ROOT), os.fsencode(new_root), os.fsencode(put_old)),
        f"pivot_root {new_root}",
    )
