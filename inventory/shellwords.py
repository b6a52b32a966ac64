"""A shell's words, operators and redirects, read without a shell. Time is linear in the text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from inventory.errors import UsageError

__all__ = ["Token", "shell_tokens"]

_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "\n", "(", ")")
_REDIRECT = re.compile(r"&>>?|>>|>&|>\||<<<|<<-?|<&|>|<")


@dataclass(frozen=True)
class Token:
    kind: Literal["word", "operator", "redirect"]
    text: str
    quoted: bool = False
    #: A redirect right behind a word: a number there is a file descriptor, "2>".
    glued: bool = False
    #: Parts of the word: (text, whether the shell expands variables in it).
    parts: tuple[tuple[str, bool], ...] = ()


def shell_tokens(text: str) -> Iterator[Token]:
    at, end, word_end = 0, len(text), -1
    while at < end:
        char = text[at]
        if text.startswith("\\\n", at):
            at += 2
        elif char in " \t":
            at += 1
        elif char == "#":
            at = _line_end(text, at)
        elif found := _REDIRECT.match(text, at):
            yield Token("redirect", found.group(), glued=at == word_end)
            at = found.end()
        elif operator := next((o for o in _OPERATORS if text.startswith(o, at)), None):
            yield Token("operator", operator)
            at += len(operator)
        else:
            token, at = _word(text, at)
            word_end = at
            yield token


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def _word(text: str, at: int) -> tuple[Token, int]:
    parts: list[tuple[str, bool]] = []
    quoted = False
    while at < len(text) and text[at] not in " \t\n;|&()<>":
        char = text[at]
        if char in "'\"":
            piece, at = _quoted(text, at)
            parts.append((piece, char == '"'))
            quoted = True
        elif char == "\\":
            parts.append((text[at + 1 : at + 2].replace("\n", ""), False))
            at += 2
        elif text.startswith("$(", at) or char == "`":
            piece, at = _substitution(text, at)
            parts.append((piece, False))
        else:
            plain = _PLAIN.match(text, at)
            parts.append((plain.group() if plain else char, True))
            at = plain.end() if plain else at + 1
    return Token("word", "".join(p for p, _ in parts), quoted, parts=tuple(parts)), at


_PLAIN = re.compile(r"""(?:\$\{[^}\n]{0,200}\}|\$(?!\()|[^\s;|&()<>'"\\`$])+""")


def _quoted(text: str, at: int) -> tuple[str, int]:
    quote = text[at]
    piece: list[str] = []
    here = at + 1
    while here < len(text) and text[here] != quote:
        if quote == '"' and text[here] == "\\" and text[here + 1 : here + 2] in {'"', "\\", "$", "`", "\n"}:
            piece.append(text[here + 1].replace("\n", ""))
            here += 2
        else:
            piece.append(text[here])
            here += 1
    if here >= len(text):
        line = text.count("\n", 0, at) + 1
        raise UsageError(
            f"the quote {quote} opened on line {line} is never closed: {text[at : at + 30]!r}",
            hint="close it; for a JSON value use single quotes around the whole",
        )
    return "".join(piece), here + 1


def _substitution(text: str, at: int) -> tuple[str, int]:
    closing = "`" if text[at] == "`" else ")"
    found = text.find(closing, at + 1)
    end = len(text) if found < 0 else found + 1
    return text[at:end], end
