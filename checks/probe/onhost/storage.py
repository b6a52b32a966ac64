"""Disks behind the folders asked about, and shared memory."""

import os

from .base import Look, attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHM = "/dev/shm"  # noqa: S108 - looked at, nothing is put there
SHM_FILES = 50


def collect(look: Look) -> "dict[str, Any]":
    mounts = attempt(_mounts, look)
    folders = look.params.get("folders", [])
    return {"disks": [attempt(_disk, look, f, mounts) for f in folders], "shm": attempt(_shm, look)}


def _mounts(look: Look) -> "list[tuple[str, str, list[str]]]":
    """(mount point, file system type, options) in mount order; the last one over a path counts."""
    out = []
    for line in look.text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        where = words[4].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
        options = set(words[5].split(",")) | set(kind[2].split(",") if len(kind) > 2 else ())
        out.append((where, kind[0], sorted(o for o in options if "=" not in o)))
    return out


def _disk(look: Look, folder: str, mounts: "Any") -> "dict[str, Any]":
    nearest = folder
    while nearest not in ("/", "") and not look.exists(nearest):
        nearest = os.path.dirname(nearest)
    nearest = nearest or "/"
    stat = os.statvfs(look.path(nearest) or "/")
    mount = _mount_of(os.path.realpath(look.path(nearest) or "/"), mounts)
    return {
        "path": folder,
        "exists": nearest == folder,
        "nearest": nearest,
        "mount": mount[0],
        "fstype": mount[1],
        "options": mount[2],
        "total": stat.f_blocks * stat.f_frsize,
        "free": stat.f_bavail * stat.f_frsize,
        "inodes_free": stat.f_favail if stat.f_files else None,
        "read_only": bool(stat.f_flag & os.ST_RDONLY),
        "device": os.stat(look.path(nearest) or "/").st_dev,
    }


def _mount_of(path: str, mounts: "Any") -> "tuple[Any, Any, Any]":
    if isinstance(mounts, dict):
        return mounts, mounts, mounts
    over = [m for m in mounts if path == m[0] or path.startswith(m[0].rstrip("/") + "/")]
    return max(over, key=lambda m: len(m[0])) if over else ("/", "", [])


def _shm(look: Look) -> "dict[str, Any]":
    stat = os.statvfs(look.path(SHM))
    return {
        "total": stat.f_blocks * stat.f_frsize,
        "free": stat.f_bavail * stat.f_frsize,
        "files": attempt(_shm_files, look),
    }


def _shm_files(look: Look) -> "list[dict[str, Any]]":
    """The largest files in shared memory: a killed engine leaves its own behind."""
    out: list[dict[str, Any]] = []
    for entry in os.scandir(look.path(SHM)):
        stat = entry.stat(follow_symlinks=False)
        out.append({"name": entry.name, "bytes": stat.st_blocks * 512, "uid": stat.st_uid})
    return sorted(out, key=lambda f: int(f["bytes"]), reverse=True)[:SHM_FILES]
