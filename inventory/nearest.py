"""The nearest valid word, for errors about a word nobody knows."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """A hint: the nearest valid word, else the whole list when it is short, else nothing."""
    names = list(valid)
    if close := get_close_matches(word.lower(), names, n=1, cutoff=0.6):
        return f"did you mean {close[0]}?"
    return f"valid: {', '.join(names)}" if 0 < len(names) <= 12 else ""
