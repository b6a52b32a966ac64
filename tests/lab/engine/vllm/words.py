"""The text: one word a token, chosen by a hash of the prompt, so that it is the same each time."""

import re
import zlib

__all__ = ["count", "natural_length", "word"]

_TEXT = """the kernel reads a page of memory and returns it to the caller before any thread can write while
each worker keeps one queue so that requests wait for tokens but never for locks if a draft is right then two
steps become one else nothing is lost def run self value for item in range return sum list index node server
model layer cache block batch stream token result error state time limit"""
_WORDS = tuple(_TEXT.split())


def count(text: str) -> int:
    """Tokens of a prompt."""
    return max(1, len(re.findall(r"\w+|[^\w\s]", text)))


def word(prompt: str, at: int, *, fault: str = "") -> str:
    """The ``at``-th token after this prompt; ``garbage`` and ``lossy`` spoil it."""
    if fault == "garbage":
        return "!"
    salt = b"lossy" if fault == "lossy" and at % 7 == 6 else b""
    seed = zlib.crc32(salt + at.to_bytes(4, "little"), zlib.crc32(prompt.encode("utf-8", "replace")))
    return " " + _WORDS[(seed >> 7) % len(_WORDS)]


def natural_length(prompt: str) -> int:
    """Where the model would stop by itself: 200 to 1223 tokens."""
    return 200 + zlib.crc32(prompt.encode("utf-8", "replace")) % 1024
