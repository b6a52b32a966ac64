"""What a report is made from: the documents of status, doctor, drift, facts, plan, bench and review."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.bench.model import BenchResult

__all__ = ["Collected", "Node", "entries", "number", "texts"]

Node = Mapping[str, Any]


@dataclass
class Collected:
    """Documents as their tasks print them (``--json``), one entry a host where a document has several.

    ``plans`` are plans with the ``host`` they are for. ``sources`` says what was read, ``unread`` what was
    not and why. ``looked``: kinds that somebody asked for; a section without one says so instead of "none".
    """

    rows: list[Node] = field(default_factory=list)
    unreachable: list[Node] = field(default_factory=list)
    diagnoses: list[Node] = field(default_factory=list)
    drifts: list[Node] = field(default_factory=list)
    facts: list[Node] = field(default_factory=list)
    plans: list[Node] = field(default_factory=list)
    reviews: list[Node] = field(default_factory=list)
    benches: list[BenchResult] = field(default_factory=list)
    sources: list[dict[str, str]] = field(default_factory=list)
    unread: list[dict[str, str]] = field(default_factory=list)
    looked: set[str] = field(default_factory=set)


def entries(value: Any) -> list[Node]:
    """The objects of a list; nothing where it is none. A saved file may hold anything in any place."""
    return [x for x in value if isinstance(x, Mapping)] if isinstance(value, list | tuple) else []


def texts(value: Any) -> list[str]:
    return [str(x) for x in value] if isinstance(value, list | tuple) else []


def number(value: Any) -> float | None:
    """A finite number, or None."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if fine else None
