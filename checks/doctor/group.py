"""One diagnosis of several hosts that serve as one: all ranks' journals in the order of time."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from checks.doctor.diagnose import diagnose, verdict_of
from checks.doctor.merge import with_host_rules
from checks.doctor.model import Inputs, Report
from checks.outcome import Finding, Outcome, Severity, Status

__all__ = ["group_report", "merge_journals"]

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)) ")
#: Lines that begin a start. Only rank 0's count, or each rank's would end the one before.
_BEGINS = re.compile(r"systemd\[\d+\]: (?:Starting|Started) |API server version|▄▄ ▄█|server_args=ServerArgs")
#: Causes that only say that another rank has the cause.
_SECOND_HAND = {"rank-died", "rank-silent", "rank-absent"}


def merge_journals(journals: Sequence[tuple[str, str]], ahead: Mapping[str, float]) -> str:
    """Lines of all (host, text in journalctl's short-iso form), in order of time, rank 0 first.

    ``ahead``: seconds each host's clock is ahead; its stamps are set back by that for the order. A line
    without a stamp stays behind the one before it.
    """
    lines = []
    for rank, (host, text) in enumerate(journals):
        when = 0.0
        for number, line in enumerate(text.splitlines()):
            if stamp := _STAMP.match(line):
                when = datetime.fromisoformat(stamp[1].replace(",", ".")).timestamp() - ahead.get(host, 0.0)
            if rank == 0 or not _BEGINS.search(line):
                lines.append((when, rank, number, line))
    return "".join(f"{line}\n" for *_, line in sorted(lines, key=lambda t: t[:3]))


def group_report(
    name: str, merged: str, head: Inputs, rules: Sequence[Outcome], lost: Mapping[str, str]
) -> Report:
    """Rank 0's inputs with the journals of all; ``lost``: hosts nobody could look at, and why."""
    told = replace(head, log=[merged.encode()] if merged else None, host=name)
    report = with_host_rules(diagnose(told), rules)
    findings = _first_hand(list(report.findings))
    blind = tuple(Outcome("host", Status.UNKNOWN, why=w, data={"host": h}) for h, w in lost.items())
    outcomes = (*report.outcomes, *blind)
    verdict = f"{name}: {verdict_of(findings, list(outcomes))}"
    return Report(tuple(findings), outcomes, verdict)


def _first_hand(findings: list[Finding]) -> list[Finding]:
    """A cause in one rank's own words makes the others' "it is gone" a symptom of it."""
    roots = [f for f in findings if f.root and f.severity is Severity.ERROR]
    if all(f.slug in _SECOND_HAND for f in roots):
        return findings
    symptoms = {f.slug for f in roots if f.slug in _SECOND_HAND}
    moved = [replace(f, root=False) if f.slug in symptoms else f for f in findings]
    return sorted(moved, key=lambda f: not f.root)
