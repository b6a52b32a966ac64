"""Wheels on the operator's machine, for hosts without an index: downloaded by pip, whole or not there.

pip, not uv, because a site's pip configuration (index, find-links, proxy, certificates) then holds.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import CheckRefused
from inventory.locks import WheelLock

__all__ = ["Wheelhouse", "wheelhouse_of"]

_ONE_AT_A_TIME = threading.Lock()

#: manylinux levels a glibc 2.39 host (Ubuntu 24.04) can use; pip matches each tag exactly.
_GLIBC_MINORS = range(39, 4, -1)


@dataclass(frozen=True)
class Wheelhouse:
    """The folder with every wheel of a lock: the operator's own, or one that pip fills when it is wanted.

    python_tag: "cp312"; glibc_minor: 39 for glibc 2.39.
    """

    lock_id: str
    lock_text: str
    python_tag: str
    glibc_minor: int
    own: Path | None = None

    @property
    def folder(self) -> Path:
        if self.own:
            return self.own
        cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "eyas" / "wheelhouse"
        return cache / self.lock_id[:16]

    def size(self) -> int | None:
        """Bytes of its wheels; None: not downloaded yet."""
        if not self.folder.is_dir():
            return None
        return sum(p.stat().st_size for p in self.folder.glob("*.whl"))

    def unpacked(self) -> int | None:
        """Bytes that its archives hold; None: not downloaded yet, or one of them can't be read."""
        if not self.folder.is_dir():
            return None
        try:
            return sum(_held(p) for p in self.folder.glob("*.whl"))
        except (OSError, zipfile.BadZipFile):
            return None

    def fetched(self, say: Callable[[str], None]) -> Path:
        """The folder, whole; downloaded now if it must be. Raises CheckRefused with pip's own last lines."""
        if self.own and not self.own.is_dir():
            raise CheckRefused(f"no folder of wheels: {self.own}", hint="name the folder: --wheelhouse DIR")
        with _ONE_AT_A_TIME:  # several hosts of one run want the same
            if not self.folder.is_dir():
                self._fill(say)
        return self.folder

    def _fill(self, say: Callable[[str], None]) -> None:
        partial = self.folder.with_name(f"{self.folder.name}.{os.getpid()}")
        try:
            partial.mkdir(parents=True)
            _download(self.lock_text, partial, self.python_tag, self.glibc_minor, say)
            partial.rename(self.folder)
        except OSError as e:
            if not self.folder.is_dir():  # else another run was faster
                raise CheckRefused(
                    f"the wheelhouse could not be kept: {e}", hint="make room, or set XDG_CACHE_HOME"
                ) from e
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _held(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return sum(i.file_size for i in archive.infolist())


def wheelhouse_of(lock: WheelLock, own: Path | None = None) -> Wheelhouse:
    """For the Python and glibc that the lock is made for."""
    minor = int((lock.target.glibc or "2.39").split(".")[1])
    return Wheelhouse(lock.id, lock.text, lock.target.python_tag, minor, own=own)


def _download(
    lock_text: str, folder: Path, python_tag: str, glibc_minor: int, say: Callable[[str], None]
) -> None:
    lock = folder / "lock.txt"
    lock.write_text(lock_text)
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    if python_tag != f"cp3{sys.version_info.minor}":
        argv += ["--python-version", f"3.{python_tag[3:]}", "--implementation", "cp"]
        argv += [w for tag in (python_tag, "abi3", "none") for w in ("--abi", tag)]
        levels = [n for n in _GLIBC_MINORS if n <= glibc_minor]
        names = [*(f"manylinux_2_{n}_x86_64" for n in levels), "manylinux2014_x86_64", "manylinux1_x86_64"]
        argv += [w for name in (*names, "linux_x86_64", "any") for w in ("--platform", name)]
    argv += ["-r", str(lock), "-d", str(folder)]
    say("downloading the wheels of the lock with pip")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
        assert p.stdout is not None
        tail: list[str] = []
        for line in p.stdout:
            tail = [*tail[-7:], line.rstrip()]
            if found := re.match(r"(?:Saved|Collecting) (\S+)", line):
                say(f"wheels: {Path(found.group(1)).name}")
    lock.unlink()
    if p.returncode:
        raise CheckRefused(
            "pip could not download every wheel of the lock:\n" + "\n".join(tail),
            hint="pip config list shows which index is asked; set wheels_from: host if the host has one",
        )
