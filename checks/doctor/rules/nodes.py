"""One deployment over several hosts: what its supervisors wait for now. Waiting that ended tells nothing."""

from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate

__all__ = ["RULES"]

#: mark of a journal line -> cause, strength: what names a reason comes before what only misses a rank.
WAITS = {
    "rank.address": ("rank-address-gone", 3),
    "rank.release": ("ranks-differ", 3),
    "rank.unreachable": ("rank-unreachable", 3),
    "rank.absent": ("rank-absent", 2),
}


def _waits(case: Case) -> Iterator[Candidate]:
    complete = case.all("rank.complete")
    since = max((h.line for h in complete), default=-1)
    for mark, (cause, strength) in WAITS.items():
        hits = [h for h in case.all(mark) if h.line > since]
        if hits:
            last = hits[-1]
            yield Candidate(cause, strength, case.evidence(last), dict(last.groups), last.line, last.start)


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {"rank-waits": _waits}
