"""Sizes as people type them."""

from inventory.errors import UsageError

__all__ = ["parse_size"]

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int | None:
    """``96M`` or ``2G`` in bytes; empty is None; UsageError otherwise."""
    if not text:
        return None
    unit = UNITS.get(text[-1].upper(), 0)
    if not unit or not (text[:-1].isascii() and text[:-1].isdigit()) or int(text[:-1]) == 0:
        raise UsageError(f"bad size {text!r}", hint="a whole number with K, M or G, e.g. 512M")
    return int(text[:-1]) * unit
