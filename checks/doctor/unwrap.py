"""A log that a terminal, a ticket or a mail wrapped at a fixed column, put together again.

Only a short log is looked at, and only one whose longest lines all end at the same column: a log as it was
written has one longest line.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from checks.doctor.reader import looks_binary
from checks.doctor.text import clean

__all__ = ["unwrapped"]

MOST = 256 << 10
WIDTHS = range(60, 301)
#: Never the rest of a line, wherever that was cut.
_FRESH = ("Traceback (", 'File "', "$ ")
_EXCEPTION = re.compile(r"[\w.]{1,80}(?:Error|Exception)\b")
#: Columns at which one full line is proof enough.
USUAL = frozenset({72, 76, 78, 79, 80, 100, 120, 132, 160})


def unwrapped(blocks: Iterable[bytes]) -> tuple[Iterator[bytes], list[int]]:
    """The log, and of each of its lines the number it had before; no numbers when nothing was joined."""
    rest = iter(blocks)
    head: list[bytes] = []
    for block in rest:
        head.append(block)
        if sum(map(len, head)) > MOST or looks_binary(head[0]):
            return chain(head, rest), []
    text = b"".join(head).decode("utf-8", "replace").replace("\r\n", "\n")
    lines = text.split("\n")
    width = _width(lines)
    if not width:
        return iter(head), []
    joined, numbers = _joined(lines, width)
    return iter(["\n".join(joined).encode()]), numbers


def _width(lines: list[str]) -> int:
    """The column at which the log was cut, 0 when it was not."""
    width = max(map(len, lines), default=0)
    if width not in WIDTHS:
        return 0
    whole = [i for i, line in enumerate(lines[:-1]) if len(line) == width]
    cut = [i for i in whole if _goes_on(lines[i], lines[i + 1])]
    kinds = len({lines[i] for i in cut})
    if kinds == len(whole) == 1 and width in USUAL:  # a paragraph filled by words goes on for longer
        after = lines[cut[0] + 2 : cut[0] + 3]
        filled = after and after[0][:1].strip() and _goes_on(lines[cut[0] + 1], after[0])
        return 0 if filled else width
    return width if kinds >= 2 and len(cut) * 2 > len(whole) else 0


def _goes_on(before: str, line: str) -> bool:
    """Nothing says that the line is a message of its own."""
    if not line.strip() or clean(line).prefixed or line.lstrip().startswith(_FRESH):
        return False
    return not (before.lstrip().startswith('File "') and _EXCEPTION.match(line))


def _joined(lines: list[str], width: int) -> tuple[list[str], list[int]]:
    out: list[str] = []
    numbers: list[int] = []
    before = ""
    for number, line in enumerate(lines, 1):
        if len(before) == width and _goes_on(before, line):
            out[-1] += line
        else:
            out.append(line)
            numbers.append(number)
        before = line
    return out, numbers
