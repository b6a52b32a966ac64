"""Bytes, GiB and the allocator's rounding."""

import math

__all__ = ["GIB", "MIB", "allocated", "cdiv", "gib", "round_up"]

MIB = 1 << 20
GIB = 1 << 30

#: torch c10/cuda/CUDACachingAllocator.h: blocks are multiples of 512 B; a request of 10 MiB or more gets a
#: segment of its own, rounded to 2 MiB.
_BLOCK = 512
_OWN_SEGMENT = 10 * MIB
_SEGMENT_ROUND = 2 * MIB


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def round_up(value: int, multiple: int) -> int:
    return cdiv(value, multiple) * multiple


def gib(value: float) -> float:
    """Bytes as GiB, two digits."""
    return round(value / GIB, 2)


def allocated(nbytes: int, *, unsplit: bool = False) -> int:
    """What the caching allocator counts for one tensor.

    ``unsplit``: large blocks are not split (``max_split_size_mb``, which newer engines set while weights
    load), so a large tensor keeps the whole rounded segment.
    """
    if nbytes <= 0:
        return 0
    if unsplit and nbytes >= _OWN_SEGMENT:
        return round_up(nbytes, _SEGMENT_ROUND)
    return math.ceil(nbytes / _BLOCK) * _BLOCK
