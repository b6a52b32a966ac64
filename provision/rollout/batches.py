"""How many hosts move at once: `1`, `25%`, or a growing list `1,10%,50%`."""

import math
import re
from collections.abc import Sequence
from typing import TypeVar

from inventory.errors import UsageError

__all__ = ["batches", "check_sizes", "size_of"]

T = TypeVar("T")
_SIZE = re.compile(r"(\d+)(%?)")


def size_of(text: str, total: int, *, option: str) -> int:
    """Hosts meant by ``3`` or ``25%`` (rounded up) of ``total``. Raises UsageError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if not match or (match[2] and int(match[1]) > 100):
        raise UsageError(f"{option} {text!r} is no number of hosts", hint=f"{option} 2, or {option} 25%")
    number = int(match[1])
    return math.ceil(total * number / 100) if match[2] else number


def check_sizes(canary: str, serial: str) -> None:
    """Raise UsageError now rather than after half of a run."""
    size_of(canary, 1, option="--canary")
    for part in serial.split(","):
        if size_of(part, 100, option="--serial") == 0:
            raise UsageError("--serial 0 would move no host", hint="--serial 1, or --serial 25%")


def batches(items: Sequence[T], canary: str, serial: str) -> list[list[T]]:
    """The canary first, then batches; the last size of a list is used until all have had their turn."""
    first = size_of(canary, len(items), option="--canary")
    made = [list(items[:first])] if first else []
    rest, sizes = list(items[first:]), serial.split(",")
    while rest:
        text = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        size = max(1, size_of(text, len(items), option="--serial"))
        made.append(rest[:size])
        rest = rest[size:]
    return [b for b in made if b]
