"""Driver lines and Xids of this boot, from the first kernel log this user may read."""

import os
import re
import time

from .base import Look, LookFailed, attempt, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)")
OURS = re.compile(
    r"NVRM|\bnvidia|nouveau|nova_core|Lockdown: |module verification|Out of memory: Killed|oom-kill"
)
#: "TIME HOST kernel: text" -> "TIME text"
JOURNAL_NAME = re.compile(r"^(\S+ )\S+ kernel: ")
MOST_XIDS = 200
MOST_LINES = 60
MOST_RECORDS = 200000


def collect(look: Look) -> "dict[str, Any]":
    lines = attempt(_lines, look)
    if isinstance(lines, dict):
        return {"xid": lines, "driver": {"kernel_lines": lines}}
    xids = [found for found in (_xid(when, text) for when, text in lines) if found]
    return {
        "xid": xids[-MOST_XIDS:],
        "driver": {"kernel_lines": [{"time": w, "text": t[:400]} for w, t in lines][-MOST_LINES:]},
    }


def _xid(when: "float | None", text: str) -> "dict[str, Any] | None":
    match = XID.search(text)
    if not match:
        return None
    return {"time": when, "pci": match.group(1), "code": int(match.group(2)), "text": text[:400]}


def _lines(look: Look) -> "list[tuple[float | None, str]]":
    """(epoch seconds, text) of the lines of interest. LookFailed names each log that gave nothing."""
    why = []
    partial: list[tuple[float | None, str]] = []
    for source in (_kmsg, _journal, _file):
        try:
            found, whole = source(look)
        except (OSError, LookFailed) as e:
            why.append(reason(e))
            continue
        if found and whole:
            return [(when, text) for when, text in found if OURS.search(text)]
        partial = partial or found
        why.append(source.__name__.strip("_") + " is empty")
    if not partial:
        raise LookFailed("no kernel log could be read: " + "; ".join(why))
    return [(when, text) for when, text in partial if OURS.search(text)]


def _kmsg(look: Look) -> "tuple[list[tuple[float | None, str]], bool]":
    """The kernel's ring buffer, and whether it still holds its first record."""
    booted = time.time() - time.monotonic()
    fd = os.open(look.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    out: list[tuple[float | None, str]] = []
    first = None
    try:
        while len(out) < MOST_RECORDS:
            try:
                head, _, text = os.read(fd, 16384).decode("utf-8", "replace").partition(";")
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while reading
            words = head.split(",")
            first = int(words[1]) if first is None else first
            if int(words[0]) >> 3 == 0:  # facility kernel: user space can write here as well
                out.append((booted + int(words[2]) / 1e6, text.split("\n")[0]))
    finally:
        os.close(fd)
    return out, first == 0


def _journal(look: Look) -> "tuple[list[tuple[float | None, str]], bool]":
    out = look.run("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-unix", limit=4.0)
    pairs = [JOURNAL_NAME.sub(r"\1", line).partition(" ") for line in out.splitlines()]
    return [(float(w) if re.match(r"^\d+(\.\d+)?$", w) else None, text) for w, _, text in pairs], True


def _file(look: Look) -> "tuple[list[tuple[float | None, str]], bool]":
    path = look.path("/var/log/kern.log")
    with open(path, "rb") as f:
        f.seek(max(0, os.path.getsize(path) - (4 << 20)))
        text = f.read().decode("utf-8", "replace")
    return [(None, line) for line in text.splitlines()], True
