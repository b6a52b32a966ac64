"""Every rule of the doctor, in one list. A rule reads a Case and yields candidates; a crash stays its own."""

from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.rules import (
    acceptance,
    cards,
    draft,
    driver,
    hostmemory,
    kvcache,
    live,
    network,
    nodes,
    oom,
    ranks,
    review,
    speculation,
    split,
    unit,
    wheels,
)

__all__ = ["RULES", "Rule", "direct"]

Rule = Callable[[Case], Iterator[Candidate]]


def direct(case: Case) -> Iterator[Candidate]:
    """Signatures that name their cause by themselves."""
    for hit in case.hits:
        if hit.sig.cause and not (hit.sig.cause == "worker-died" and case.before("shutdown", hit)):
            yield Candidate(
                hit.sig.cause,
                hit.sig.strength,
                case.evidence(hit),
                {k.rstrip("0123456789"): v for k, v in hit.groups.items()},
                line=hit.line,
                start=-1 if hit.sig.sticky else hit.start,
                severity=hit.sig.severity,
            )


RULES: dict[str, Rule] = {
    "signatures": direct,
    **oom.RULES,
    **kvcache.RULES,
    **hostmemory.RULES,
    **split.RULES,
    **ranks.RULES,
    **speculation.RULES,
    **draft.RULES,
    **acceptance.RULES,
    **driver.RULES,
    **cards.RULES,
    **wheels.RULES,
    **unit.RULES,
    **network.RULES,
    **live.RULES,
    **nodes.RULES,
    **review.RULES,
}
