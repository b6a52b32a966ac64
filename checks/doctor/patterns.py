"""The patterns of ``patterns.toml``, compiled once."""

import re
import tomllib
from functools import cache
from pathlib import Path

__all__ = ["harmless", "option", "phases", "prose"]

_FILE = Path(__file__).resolve().parent / "patterns.toml"


@cache
def _tree() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@cache
def option(name: str) -> tuple[re.Pattern[str], ...]:
    """Spellings of a setting; group 1 is its value."""
    return tuple(re.compile(p) for p in _tree()["option"][name])


@cache
def prose(name: str) -> re.Pattern[str]:
    """A set of alternatives as one pattern, for lower-case text."""
    return re.compile("|".join(_tree()["prose"][name]))


@cache
def harmless() -> re.Pattern[str]:
    """Lines that quote a failure, or that go on after one; for lower-case text."""
    return re.compile("|".join(_tree()["harmless"]["lines"]))


@cache
def phases() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Phases of an out-of-memory in order of decision, with their frames."""
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["phase"]
    return tuple((row["name"], re.compile("|".join(row["frames"]))) for row in rows)
