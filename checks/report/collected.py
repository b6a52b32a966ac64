"""What a report is made from: the documents of status, doctor, drift, facts, plan, bench and review."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.bench.model import BenchResult

__all__ = ["Collected", "Node"]

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
