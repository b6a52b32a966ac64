"""Prompts by domain, stretched to a stated length in the server's own tokens.

The texts are ours (prompts.toml). Each prompt of a run begins with a line of its own, so that no prefix
cache answers a later one, and all strategies get the same prompts.
"""

import json
import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inventory.errors import UsageError
from inventory.nearest import did_you_mean

__all__ = ["DOMAINS", "Domain", "Workload", "domains", "fitted", "workload"]

_FILE = Path(__file__).with_name("prompts.toml")
DOMAINS = ("python", "typescript", "sql", "rag", "chat")
_MIXED = {"code": ("python", "typescript")}
#: Close enough to the stated length.
_WITHIN = 0.03
_TRIES = 6
_SEEN = 4

Count = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True)
class Domain:
    """``head`` says what is given, ``pieces`` are the material, ``tail`` asks. ``whole``: never stretched."""

    name: str
    head: str
    pieces: tuple[str, ...]
    tail: str
    whole: tuple[str, ...] = ()

    def text(self, chars: int, seed: str) -> str:
        """About ``chars`` characters of material, in an order that the seed alone decides."""
        order = random.Random(f"{self.name} {seed}")  # noqa: S311 - reproducible texts, no secret
        begin = f"[{self.name} {seed}]\n"
        if self.whole:
            return begin + self.whole[order.randrange(len(self.whole))]
        out: list[str] = []
        room = chars - len(begin) - len(self.head) - len(self.tail) - 4
        while room > 0:
            for piece in order.sample(self.pieces, len(self.pieces)):
                if room <= 0:
                    break
                out.append(piece[:room])
                room -= len(piece) + 1
        return f"{begin}{self.head}\n\n" + "\n".join(out) + f"\n\n{self.tail}"


@dataclass(frozen=True)
class Workload:
    """What one cell asks: its domains take turns."""

    name: str
    domains: tuple[Domain, ...]

    def prompts(self, chars: dict[str, int], count: int, seed: str) -> list[str]:
        """``count`` prompts, each unlike any other of any seed. ``chars`` by domain, see ``fitted``."""
        turns = [(self.domains[n % len(self.domains)], n) for n in range(count)]
        return [d.text(chars[d.name], f"{seed}.{n}") for d, n in turns]


@cache
def domains() -> dict[str, Domain]:
    found = tomllib.loads(_FILE.read_text(encoding="utf-8"))["domain"]
    return {d["name"]: Domain(d["name"], d["head"], tuple(d["pieces"]), d["tail"]) for d in found}


def workload(name: str) -> Workload:
    """A domain, "code" (Python and TypeScript in turn), or a file of prompts. UsageError for neither."""
    if name in DOMAINS or name in _MIXED:
        return Workload(name, tuple(domains()[d] for d in _MIXED.get(name, (name,))))
    path = Path(name).expanduser()
    if not _is_file(path):
        near = did_you_mean(name, [*DOMAINS, *_MIXED])
        raise UsageError(
            f"{name[:80]!r} is no workload and no file",
            hint=near or f"one of {', '.join([*_MIXED, *DOMAINS])}, or a file of prompts",
        )
    return Workload(path.name, (Domain(path.name, "", (), "", _from_file(path)),))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no name that a file could have
        return False


def _from_file(path: Path) -> tuple[str, ...]:
    """JSON lines with a "prompt", or texts apart by lines of "---"."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the prompts in {path}: {e}", hint="a UTF-8 text file") from e
    if path.suffix == ".jsonl":
        found = [_prompt(path, n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    else:
        found = [part.strip() for part in text.replace("\r\n", "\n").split("\n---\n") if part.strip()]
    if not found:
        raise UsageError(f"{path} holds no prompt", hint='texts apart by lines of "---", or .jsonl')
    return tuple(found)


def _prompt(path: Path, number: int, line: str) -> str:
    try:
        told = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError) as e:
        raise UsageError(f'{path}:{number} is no JSON object with a "prompt"') from e
    if not isinstance(told, str) or not told.strip():
        raise UsageError(f"{path}:{number}: the prompt is not a text")
    return told


def fitted(domain: Domain, tokens: int, count: Count) -> int:
    """Characters that give about ``tokens`` tokens on this server; 0 for prompts taken as they are.

    Raises UsageError when the length can't be reached (shorter than the question itself).
    """
    if domain.whole:
        return 0
    chars, best = tokens * 4, (float("inf"), 0)
    for _ in range(_TRIES):
        # Texts of one length differ in tokens by what they happen to hold.
        seen = sum(count([domain.text(chars, f"fit.{n}") for n in range(_SEEN)])) / _SEEN
        best = min(best, (abs(seen - tokens) / tokens, chars))
        if best[0] <= _WITHIN:
            return best[1]
        chars = max(1, round(chars * tokens / max(1.0, seen)))
    if best[0] > 0.25:
        least = count([domain.text(1, "fit.0")])[0]
        raise UsageError(
            f"a {domain.name} prompt of {tokens} tokens can't be made: its question alone takes {least}",
            hint=f"--prompt-tokens {max(least + 50, 100)}",
        )
    return best[1]
