"""Every rule of the doctor, in one list. A rule reads a Case and yields candidates; a crash stays its own."""

from collections.abc import Callable, Iterator

from checks.doctor import (
    rules_driver,
    rules_live,
    rules_memory,
    rules_nodes,
    rules_ops,
    rules_parallel,
    rules_spec,
)
from checks.doctor.case import Case
from checks.doctor.model import Candidate

__all__ = ["RULES", "Rule", "direct"]

Rule = Callable[[Case], Iterator[Candidate]]


def direct(case: Case) -> Iterator[Candidate]:
    """Signatures that name their cause by themselves."""
    for hit in case.hits:
        if hit.sig.cause:
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
    **rules_memory.RULES,
    **rules_parallel.RULES,
    **rules_spec.RULES,
    **rules_driver.RULES,
    **rules_ops.RULES,
    **rules_live.RULES,
    **rules_nodes.RULES,
}
