"""Which part of a journal tells of now: the last start, and the one before a start that tells nothing."""

import re

__all__ = ["latest_starts"]

_OVER = re.compile(
    r"systemd\[\d{1,12}\]: \S{1,200}: (?:Main process exited|Failed with result|start operation timed out"
    r"|Start request repeated|Failed to (?:execute|load))|eyas: the engine ended"
)


def latest_starts(text: str, unit: str) -> str:
    """The journal from the start that matters on.

    A start that ended is told by its own lines alone: what earlier ones said was of other settings. One that
    still goes on, or serves, may be the restart after the failure that is asked about, so the one before it
    stays in. ``text`` is journalctl's short form; without a start line all of it is returned.
    """
    begin = re.compile(rf"systemd\[\d{{1,12}}\]: Starting {re.escape(unit)}\b")
    lines = text.splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if begin.search(line)]
    if not starts:
        return text
    over = any(_OVER.search(line) for line in lines[starts[-1] :])
    return "".join(lines[starts[-1 if over or len(starts) == 1 else -2] :])
