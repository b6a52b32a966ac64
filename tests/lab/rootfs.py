"""The root file system every host is a clone of: built once, kept in the cache, never used half-made."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from inventory.errors import ChangeFailed, UsageError
from tests.lab.needs import cache_dir, ensure_packages

__all__ = ["RELEASES", "ensure_rootfs", "locked", "os_release", "pick_release", "recipe"]

HERE = Path(__file__).resolve().parent
RELEASES = ("bookworm", "noble", "trixie")
Say = Callable[[str], None]


@cache
def recipe() -> dict[str, Any]:
    return tomllib.loads((HERE / "rootfs.toml").read_text())


def os_release(presented: str) -> str:
    """The text of /etc/os-release for ``--os presented``; empty: as built. UsageError for an unknown name."""
    known = recipe()["os"]
    if presented not in known:
        raise UsageError(f"no such --os: {presented}", hint=f"one of {', '.join(known)}")
    return "".join(f'{key}="{value}"\n' for key, value in known[presented].items())


@contextmanager
def locked(path: Path, *, fleeting: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made when missing); the kernel lets go of it when we die.

    ``fleeting``: the file is removed when done.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            if not _still(path, f.fileno()):
                continue  # its holder removed it while we waited
            try:
                yield
            finally:
                if fleeting:
                    path.unlink(missing_ok=True)
            return


def _still(path: Path, fd: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(fd))
    return False


def pick_release(wanted: str = "auto") -> str:
    """``auto`` takes the first of RELEASES this machine's own apt knows, else bookworm."""
    if wanted not in {"auto", *RELEASES}:
        raise UsageError(f"no such --release: {wanted}", hint=f"one of auto, {', '.join(RELEASES)}")
    if wanted != "auto":
        return wanted
    return next((r for r in RELEASES if apt_sources(r)), RELEASES[0])


def ensure_rootfs(release: str, *, yes: bool = False, say: Say = print) -> Path:
    """Path of the root file system of ``release``, built (about a minute) when the cache lacks it."""
    home = cache_dir() / "rootfs"
    path = home / f"{release}-{_fingerprint(release)}"
    if path.exists():
        return path
    ensure_packages(["mmdebstrap", recipe()["keyring"][release]], yes)
    with locked(home / f"{release}.lock"):
        if not path.exists():
            say(f"building the {release} root file system (once, about a minute)")
            _build(release, path)
    return path


def _fingerprint(release: str) -> str:
    parts = [release, *recipe()["packages"], (HERE / "rootfs.sh").read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _build(release: str, path: Path) -> None:
    """Build beside the final name and rename: a build that was cut off is only ever swept away."""
    for torn in path.parent.glob("*.partial"):
        if torn.name.startswith(release):
            shutil.rmtree(torn)
    partial = path.with_name(path.name + ".partial")
    sources = path.with_name(f"{release}.list")
    text = apt_sources(release)
    sources.write_text(text)
    done = subprocess.run(
        _mmdebstrap(release, partial, sources if text else None),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise ChangeFailed(
            f"mmdebstrap could not build {release}:\n{_tail(done.stderr)}",
            hint=f"check that this machine's apt reaches a mirror of {release}, or choose another --release",
        )
    partial.chmod(0o755)
    partial.rename(path)


def _mmdebstrap(release: str, target: Path, sources: Path | None) -> list[str]:
    script = HERE / "rootfs.sh"
    return [
        *("mmdebstrap", "--quiet", "--variant=minbase", "--format=directory"),
        f"--include={','.join(recipe()['packages'])}",
        *('--aptopt=Acquire::http::Timeout "20"', '--aptopt=Acquire::Retries "1"'),
        f'--customize-hook=chroot "$1" sh -s < {script}',
        *(release, str(target)),
        # Without sources of our own mmdebstrap takes the distribution's public mirror.
        *([str(sources)] if sources else []),
    ]


def _tail(text: str, lines: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def apt_sources(release: str, etc: Path = Path("/etc/apt")) -> str:
    """The machine's own apt entries for ``release`` and its updates, as a one-line-style sources.list.

    Third-party archives name suites of their own and so stay out; a suite that is merely named after the
    release (``bookworm-backports``) does too.
    """
    lines: list[str] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.suffix == ".sources":
            lines += _from_deb822(path.read_text(), release)
        elif path.suffix == ".list" and path.is_file():
            lines += _from_list(path.read_text(), release)
    return "".join(f"{line}\n" for line in dict.fromkeys(lines))


def _suites(release: str) -> set[str]:
    return {release, f"{release}-updates", f"{release}-security"}


def _from_deb822(text: str, release: str) -> Iterator[str]:
    for stanza in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
        field = {k.lower(): v for k, v in re.findall(r"(?m)^([\w-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", stanza)}
        if "deb" not in field.get("types", "").split() or field.get("enabled", "").strip().lower() == "no":
            continue
        signed = field.get("signed-by", "").strip()
        option = f"[signed-by={signed}] " if signed.startswith("/") else ""
        for uri in field.get("uris", "").split():
            for suite in field.get("suites", "").split():
                if suite in _suites(release):
                    yield f"deb {option}{uri} {suite} {field.get('components', '')}".rstrip()


def _from_list(text: str, release: str) -> Iterator[str]:
    for line in text.splitlines():
        found = re.match(r"\s*deb\s+(?:\[[^]]*\]\s+)?\S+\s+(\S+)\s", line + " ")
        if found and found[1] in _suites(release):
            yield line.strip()
