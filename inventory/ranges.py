"""Host ranges as Ansible writes them: ``gpu[01:08]``, ``rack[a:c]-[1:9:2]``. Both ends are included."""

import re
import string
from itertools import product

from inventory.errors import InventoryError

__all__ = ["MAX_HOSTS", "expand", "has_range"]

MAX_HOSTS = 10_000

_RANGE = re.compile(r"\[([^\[\]:]*):([^\[\]:]*)(?::([^\[\]:]*))?\]")


def has_range(text: str) -> bool:
    """True when the text holds at least one ``[x:y]``."""
    return _RANGE.search(text) is not None


def expand(text: str) -> list[str]:
    """All names a text with ranges stands for, in order. Raises InventoryError on a malformed range."""
    parts: list[list[str]] = []
    at = 0
    for match in _RANGE.finditer(text):
        parts += [[text[at : match.start()]], _values(text, *match.groups())]
        at = match.end()
    parts.append([text[at:]])
    total = 1
    for part in parts:
        total *= len(part)
    if total > MAX_HOSTS:
        raise _bad(text, f"stands for {total} names, more than {MAX_HOSTS}")
    return ["".join(combination) for combination in product(*parts)]


def _values(text: str, first: str, last: str, step: str | None) -> list[str]:
    first = first or "0"
    stride = _number(text, step) if step is not None else 1
    if not last or stride < 1:
        raise _bad(text, "a range needs an end and a step of at least 1")
    if len(first) == len(last) == 1 and first in string.ascii_letters and last in string.ascii_letters:
        start, stop = string.ascii_letters.index(first), string.ascii_letters.index(last)
        values = list(string.ascii_letters[start : stop + 1 : stride])
    else:
        values = _numbers(text, first, last, stride)
    if not values:
        raise _bad(text, f"{first} comes after {last}")
    return values


def _numbers(text: str, first: str, last: str, stride: int) -> list[str]:
    width = len(first) if first.startswith("0") and len(first) > 1 else 0
    if width and len(last) != width:
        raise _bad(text, f"{first} and {last} need the same number of digits")
    start, stop = _number(text, first), _number(text, last)
    if (stop - start) // stride >= MAX_HOSTS:
        raise _bad(text, f"stands for more than {MAX_HOSTS} names")
    return [str(n).zfill(width) for n in range(start, stop + 1, stride)]


def _number(text: str, digits: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", digits):
        raise _bad(text, f"{digits!r} is neither a number nor a letter")
    return int(digits)


def _bad(text: str, why: str) -> InventoryError:
    return InventoryError(f"range {text!r}: {why}", hint="write it like gpu[01:08] or rack[a:c]")
