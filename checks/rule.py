"""A rule is a pure look at facts and a wish: it yields what it found, never touches a host, prints or fixes.

A rule asks for facts through `need`, so that a fact nobody could read ends in UNKNOWN with the fact's own
reason, never in OK. `NotApplicable` ends in SKIPPED.
"""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from checks.facts import HostFacts, Known
from checks.outcome import Evidence, Finding, Fix, Outcome, Severity, Status

__all__ = ["Found", "NotApplicable", "NotLooked", "Rule", "code_of", "known", "need", "observe", "rule"]

W = TypeVar("W")
CODES = Path(__file__).parent / "doctor" / "codes"


class NotLooked(Exception):
    """A fact the rule stands on is missing; the text says which and why."""


class NotApplicable(Exception):
    """The rule has nothing to look at here; the text says why."""


@dataclass(frozen=True)
class Found:
    """What a rule saw: one sentence with both values, where to check it, the way out."""

    message: str
    evidence: tuple[Evidence, ...] = ()
    fix: tuple[Fix, ...] = ()
    severity: Severity | None = None
    slug: str = ""


Look = Callable[[HostFacts, W], Iterator[Found]]


@dataclass(frozen=True)
class Rule(Generic[W]):
    slug: str
    title: str
    severity: Severity
    look: Look[W]
    needs_cards: bool = False


def rule(
    slug: str, *, severity: Severity = Severity.ERROR, needs_cards: bool = False
) -> Callable[[Look[W]], Rule[W]]:
    """Make a rule of a function; the first line of its docstring is the finding's title."""

    def wrap(look: Look[W]) -> Rule[W]:
        title = (look.__doc__ or slug).strip().splitlines()[0].rstrip(".")
        return Rule(slug, title, severity, look, needs_cards)

    return wrap


def observe(one: Rule[W], facts: HostFacts, want: W) -> Outcome:
    """Run one rule. What it found before a fact was missing is kept; a crash is that rule's outcome alone."""
    found: list[Finding] = []
    try:
        for item in one.look(facts, want):
            found.append(_finding(one, facts, item))  # noqa: PERF401 - kept when the rule raises midway
    except NotApplicable as e:
        return Outcome(one.slug, Status.SKIPPED, why=str(e))
    except NotLooked as e:
        status = Status.FINDINGS if found else Status.UNKNOWN
        return Outcome(one.slug, status, tuple(found), why=str(e))
    except Exception as e:  # noqa: BLE001 - any bug of a rule is reported as that rule's outcome
        return Outcome(one.slug, Status.CRASHED, tuple(found), why=f"{type(e).__name__}: {e}")
    return Outcome(one.slug, Status.FINDINGS if found else Status.OK, tuple(found))


def need(facts: HostFacts, path: str) -> Any:
    """The fact's value, None included. NotLooked with the reason when nobody could read it."""
    fact = facts.get(path)
    if isinstance(fact, Known):
        return fact.value
    raise NotLooked(f"{path}: {fact.reason}")


def known(facts: HostFacts, path: str, default: Any = None) -> Any:
    """The value where it may refine an answer but never carries it."""
    fact = facts.get(path)
    return fact.value if isinstance(fact, Known) else default


@cache
def _codes() -> dict[str, str]:
    tables = [tomllib.loads(p.read_text(encoding="utf-8")) for p in sorted(CODES.glob("*.toml"))]
    return {raw["slug"]: code for table in tables for code, raw in table.items()}


def code_of(slug: str) -> str:
    """The stable code of a cause (``DRV004``), or "" for a slug the catalogue lacks."""
    return _codes().get(slug, "")


def _finding(one: Rule[W], facts: HostFacts, item: Found) -> Finding:
    slug = item.slug or one.slug
    return Finding(
        code=code_of(slug),
        slug=slug,
        severity=item.severity or one.severity,
        title=one.title,
        cause=item.message,
        evidence=item.evidence,
        fix=item.fix,
        host=facts.host,
    )
