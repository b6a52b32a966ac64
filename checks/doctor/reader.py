"""Byte blocks in, overlapping windows of text out, in bounded memory whatever the size of the log."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from checks.doctor.text import ANSI

__all__ = ["BLOCK", "Window", "looks_binary", "windows"]

BLOCK = 1 << 20
OVERLAP = 24_000
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Window:
    """``text[begin:end]`` is new; what surrounds it is context. ``first_line`` counts from 1."""

    text: str
    begin: int
    end: int
    first_line: int
    last: bool = False


def looks_binary(block: bytes) -> bool:
    """True for an archive, a core dump, a weight file: nothing the doctor can read."""
    if block[:2] in _UTF16:
        return False
    sample = block[:65536]
    odd = sample.count(0) + sum(sample.count(c) for c in (1, 2, 3, 4, 5, 6, 14, 15, 16, 17, 18))
    return bool(sample) and odd > len(sample) // 50


def windows(blocks: Iterable[bytes]) -> Iterator[Window]:
    """Windows that cover the log without gap; each line begins in exactly one of them."""
    before, line = "", 1
    held: str | None = None
    for body in _bodies(blocks):
        if held is not None:
            yield Window(before + held + body[:OVERLAP], len(before), len(before) + len(held), line)
            line += held.count("\n")
            before = (before + held)[-OVERLAP:]
        held = body
    if held is not None:
        yield Window(before + held, len(before), len(before) + len(held), line, last=True)


def _bodies(blocks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    codec = ""
    for part in _bounded(blocks):
        codec = codec or ("utf-16" if part[:2] in _UTF16 else "utf-8")
        data = rest + part
        cut = len(data) if codec == "utf-16" else data.rfind(b"\n") + 1
        if cut == 0 and len(data) < BLOCK:
            rest = data
            continue
        cut = cut or len(data)
        rest = data[cut:]
        yield _text(data[:cut], codec)
    if rest:
        yield _text(rest, codec)


def _bounded(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of about BLOCK bytes, whatever the caller hands over."""
    held: list[bytes] = []
    size = 0
    for given in blocks:
        for at in range(0, len(given), BLOCK):
            held.append(given[at : at + BLOCK])
            size += len(held[-1])
            if size >= BLOCK:
                yield b"".join(held)
                held, size = [], 0
    if held:
        yield b"".join(held)


def _text(data: bytes, codec: str) -> str:
    text = data.decode(codec, "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    if "\u2019" in text or "&#39;" in text or "&quot;" in text:
        text = _typed(text)
    # U+0130 is the one letter whose lower case is longer: offsets in text and lower text must agree.
    return text.replace("\u0130", "I").replace("\x00", " ").replace("\r\n", "\n")


_TYPED = {
    "\u2018": "'",
    "\u2019": "'",
    "\u201c": '"',
    "\u201d": '"',
    "&#39;": "'",
    "&quot;": '"',
    "&lt;": "<",
    "&gt;": ">",
}


def _typed(text: str) -> str:
    """Quotes as they were written, before a web page or a mail made them pretty."""
    for pretty, plain in _TYPED.items():
        text = text.replace(pretty, plain)
    return text
