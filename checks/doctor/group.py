"""One diagnosis of several hosts that serve as one: all ranks' journals in the order of time."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from checks.doctor.catalogue import catalogue
from checks.doctor.diagnose import diagnose, verdict_of
from checks.doctor.merge import with_host_rules
from checks.doctor.model import Inputs, Report
from checks.outcome import Evidence, Finding, Fix, Outcome, Severity, Status

__all__ = ["Stopped", "group_report", "merge_journals", "stopped"]

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)) ")
#: Lines that begin a start. Only rank 0's count, or each rank's would end the one before.
_BEGINS = re.compile(r"systemd\[\d+\]: (?:Starting|Started) |API server version|▄▄ ▄█|server_args=ServerArgs")
#: Causes that only say that another rank has the cause.
_SECOND_HAND = {"rank-died", "rank-silent", "rank-absent"}
_STOPPED = "service-not-running"
#: systemd's own lines about a unit that somebody stops.
_ABOUT = re.compile(r"systemd\[\d+\]: (Starting|Started|Stopping|Stopped) ")


@dataclass(frozen=True)
class Stopped:
    """A rank whose unit does not run. ``by_hand``: somebody stopped it; else it failed by itself."""

    finding: Finding
    by_hand: bool


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


def stopped(host: str, unit: str, state: Mapping[str, Any], journal: str) -> Stopped | None:
    """A rank whose unit does not run, by systemd's word (``eyas.units``); None while it runs or tries to."""
    active = state.get("active")
    lines = _ABOUT.findall(journal)
    if active == "deactivating" and lines and lines[-1] == "Stopping":
        active = "inactive"  # somebody has asked for it, and it takes its time
    if active not in {"inactive", "failed"} or state.get("load") == "not-found":
        return None
    code = catalogue().by_slug[_STOPPED]
    start = f"systemctl reset-failed {unit}; systemctl start {unit}"
    finding = Finding(
        code=code.code,
        slug=code.slug,
        severity=Severity.ERROR,
        title=f"{code.title}: {unit} on {host} is {active}",
        cause=f"{code.what} {code.why} No rank serves without it.",
        evidence=(
            Evidence(f"eyas.units.{unit}", f"{active} ({state.get('result')}), {state.get('enabled')}"),
        ),
        fix=(
            Fix(
                "start",
                f"{unit} on {host}",
                start,
                "the group starts by itself as soon as every rank is there",
            ),
        ),
        host=host,
    )
    return Stopped(finding, by_hand=active == "inactive")


def group_report(
    name: str,
    merged: str,
    head: Inputs,
    rules: Sequence[Outcome],
    lost: Mapping[str, str],
    down: Sequence[Stopped] = (),
) -> Report:
    """Rank 0's inputs with the journals of all; ``lost``: hosts nobody could look at, and why.

    ``down``: ranks whose units do not run (``stopped``).
    """
    told = replace(head, log=[merged.encode()] if merged else None, host=name)
    report = with_host_rules(diagnose(told), rules)
    findings = _not_running(_first_hand(list(report.findings)), down)
    blind = tuple(Outcome("host", Status.UNKNOWN, why=w, data={"host": h}) for h, w in lost.items())
    outcomes = (*report.outcomes, *blind)
    verdict = f"{name}: {verdict_of(findings, list(outcomes))}"
    return Report(tuple(findings), outcomes, verdict)


def _not_running(findings: list[Finding], down: Sequence[Stopped]) -> list[Finding]:
    """What systemd says now comes before what other ranks say of that one; a cause in its own words first."""
    if not down:
        return findings
    others = [f for f in findings if f.slug != _STOPPED]
    named = [f for f in others if f.root and f.severity is Severity.ERROR and f.slug not in _SECOND_HAND]
    roots = [s.finding for s in down if s.by_hand or not named]
    late = [replace(s.finding, root=False) for s in down if s.finding not in roots]
    symptoms = [replace(f, root=False) if f.slug in _SECOND_HAND else f for f in others]
    every = [*named, *roots, *(f for f in symptoms if f not in named), *late]
    return sorted(every, key=lambda f: not f.root)


def _first_hand(findings: list[Finding]) -> list[Finding]:
    """A cause in one rank's own words makes the others' "it is gone" a symptom of it."""
    roots = [f for f in findings if f.root and f.severity is Severity.ERROR]
    if all(f.slug in _SECOND_HAND for f in roots):
        return findings
    symptoms = {f.slug for f in roots if f.slug in _SECOND_HAND}
    moved = [replace(f, root=False) if f.slug in symptoms else f for f in findings]
    return sorted(moved, key=lambda f: not f.root)
