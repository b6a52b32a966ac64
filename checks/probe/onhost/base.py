"""Bounded looks that say why they failed. Paths go through ``Look.root`` so that fixtures work."""

import errno
import os
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TEXT_LIMIT = 1 << 20


class LookFailed(Exception):
    """A look that came to nothing; the text is the reason handed to the operator."""


class Look:
    """Access to one host: its files below ``root``, its commands, until ``deadline`` (monotonic)."""

    def __init__(self, params: "dict[str, Any]", deadline: float) -> None:
        self.params = params
        self.root = str(params.get("root", "")).rstrip("/")
        self.deadline = deadline
        #: Tells the parent what is being asked, for the reason when there is no answer.
        self.note: Callable[[str], object] = len
        self.search = ":".join(self.root + d for d in FOLDERS.split(":"))

    def path(self, path: str) -> str:
        return self.root + path

    def text(self, path: str, limit: int = TEXT_LIMIT) -> str:
        with open(self.path(path), "rb") as f:
            return f.read(limit).decode("utf-8", "replace")

    def line(self, path: str) -> str:
        return self.text(path, 65536).strip()

    def names(self, path: str) -> "list[str]":
        """Entries of a folder, sorted; an absent folder has none."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.ENOTDIR):
                return []
            raise

    def exists(self, path: str) -> bool:
        """False only when it is certain: a folder that can't be searched raises."""
        try:
            os.stat(self.path(path))
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise
        return True

    def which(self, tool: str) -> "str | None":
        """As shutil.which, whose import costs more than the search."""
        for folder in self.search.split(":"):
            found = folder + "/" + tool
            if os.path.isfile(found) and os.access(found, os.X_OK):
                return found[len(self.root) :]
        return None

    def run(self, *argv: str, limit: float = 3.0, ok: "tuple[int, ...]" = (0,)) -> str:
        """Standard output of a command. LookFailed when it is absent, late, or ends with another code."""
        code, out, err = self.finish(*argv, limit=limit)
        if code not in ok:
            said = (err or out).strip().splitlines()
            raise LookFailed(f"{argv[0]} exited {code}: {said[-1] if said else 'no output'}")
        return out

    def finish(self, *argv: str, limit: float = 3.0) -> "tuple[int, str, str]":
        tool = self.which(argv[0])
        if tool is None:
            raise LookFailed(f"{argv[0]} is not installed")
        limit = max(0.1, min(limit, self.deadline - time.monotonic() - 0.2))
        env = dict(os.environ, PATH=self.search, LC_ALL="C.UTF-8", SYSTEMD_COLORS="0", SYSTEMD_PAGER="")
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [self.path(tool), *argv[1:]], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env
        )
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as e:
            process.kill()
            raise LookFailed(f"{argv[0]} gave no answer within {limit:.1f} s") from e
        return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def digest(look: Look, path: str) -> str:
    """Sha256 of a whole file, in hex."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL: paid for where there is a file of ours

    with open(look.path(path), "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def missing(reason: str) -> "dict[str, str]":
    return {"missing": reason}


def attempt(ask: "Callable[..., Any]", *args: "Any") -> "Any":
    """The answer, or why there is none."""
    try:
        return ask(*args)
    except Exception as e:
        return missing(reason(e))


def reason(error: Exception) -> str:
    if isinstance(error, LookFailed):
        return str(error)
    if isinstance(error, PermissionError):
        return f"not permitted as uid {os.getuid()}: {error.filename or error.strerror}"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{error.filename} does not exist"
    return f"{type(error).__name__}: {error}"


def fields(text: str, separator: str = "=") -> "dict[str, str]":
    """``KEY=value`` lines as a dict, quotes taken off."""
    pairs = (line.partition(separator) for line in text.splitlines())
    return {k.strip(): v.strip().strip("\"'") for k, sep, v in pairs if sep}
