"""The hosts of one group as they are worked on: side by side, each with its own report."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from checks.facts import HostFacts
from inventory.errors import CheckRefused
from inventory.model import Deployment, Host
from provision.change import Change
from provision.converge import HostReport
from provision.nodes.roster import Group
from provision.nodes.switch import side_by_side
from provision.shell import Session
from provision.want import Want

__all__ = ["GroupStopped", "Rank", "connected", "each_rank"]

Say = Callable[[str], None]


class GroupStopped(Exception):
    """Some ranks met an error; their reports say which."""


@dataclass
class Rank:
    """One host of the group, in the order of ranks."""

    host: Host
    deployment: Deployment
    shell: Any
    say: Say
    report: HostReport
    facts: HostFacts | None = None
    want: Want | None = None
    lock: Session | None = None
    changes: list[Change] = field(default_factory=list)
    #: Host -> Mbit/s from it to rank 0, where that was measured.
    links: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.host.name

    def seen(self) -> HostFacts:
        assert self.facts is not None
        return self.facts

    def wanted(self) -> Want:
        assert self.want is not None
        return self.want


@contextlib.contextmanager
def connected(
    group: Group,
    connect: Callable[[Host], Any],
    reports: dict[str, HostReport],
    say_for: Callable[[str], Say],
) -> Iterator[list[Rank]]:
    """A connection to each host of the group, or GroupStopped."""
    with contextlib.ExitStack() as stack:
        ranks = [
            Rank(h, group.deployments[h.name], None, say_for(h.name), reports[h.name]) for h in group.hosts
        ]

        def reach(rank: Rank) -> None:
            rank.shell = stack.enter_context(connect(rank.host))

        each_rank(ranks, reach)
        yield ranks


def each_rank(ranks: list[Rank], work: Callable[[Rank], object]) -> None:
    """``work`` on all ranks at once. Raises GroupStopped when any failed; each failure is in its report."""

    def timed(rank: Rank) -> None:
        began = time.monotonic()
        try:
            work(rank)
        finally:
            rank.report.seconds = round(rank.report.seconds + time.monotonic() - began, 1)

    errors = side_by_side({r.name: partial(timed, r) for r in ranks})
    failed = [(r, errors[r.name]) for r in ranks if r.name in errors]
    for rank, e in failed:
        rank.report.fail(e)
    if not failed:
        return
    culprit, error = next(((r, e) for r, e in failed if "the group lost" not in e.message), failed[0])
    for rank in ranks:
        if rank.report.exit_code == 0:
            told = f"with its group: {culprit.name}: {error.message}"
            rank.report.fail(CheckRefused(told, hint=error.hint, host=rank.name))
            rank.report.exit_code = error.exit_code
    raise GroupStopped
