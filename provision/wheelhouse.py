"""Wheels on the operator's machine, for hosts without an index: downloaded by pip, whole or not there.

pip, not uv, because a site's pip configuration (index, find-links, proxy, certificates) then holds.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from inventory.errors import CheckRefused
from inventory.locks import WheelLock

__all__ = ["wheelhouse_for", "wheelhouse_of"]

#: manylinux levels a glibc 2.39 host (Ubuntu 24.04) can use; pip matches each tag exactly.
_GLIBC_MINORS = range(39, 4, -1)


def wheelhouse_of(lock: WheelLock, say: Callable[[str], None]) -> Path:
    """``wheelhouse_for`` the Python and glibc the lock is made for."""
    glibc = lock.target.glibc or "2.39"
    return wheelhouse_for(
        lock.id,
        lock.text,
        python_tag=lock.target.python_tag,
        glibc_minor=int(glibc.split(".")[1]),
        say=say,
    )


def wheelhouse_for(
    lock_id: str, lock_text: str, *, python_tag: str, glibc_minor: int, say: Callable[[str], None]
) -> Path:
    """The folder with every wheel of the lock, from the cache or downloaded now.

    python_tag: "cp312"; glibc_minor: 39 for glibc 2.39. Raises CheckRefused with pip's own last lines.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "eyas" / "wheelhouse"
    final = cache / lock_id[:16]
    if final.is_dir():
        return final
    partial = cache / f"{lock_id[:16]}.{os.getpid()}"
    partial.mkdir(parents=True)
    try:
        _download(lock_text, partial, python_tag, glibc_minor, say)
        partial.rename(final)
    except OSError as e:
        if final.is_dir():  # another run was faster
            return final
        raise CheckRefused(f"the wheelhouse could not be kept: {e}") from e
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


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
