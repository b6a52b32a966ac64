"""One report of a host from several looks: the log, the rules over its facts, each of its units."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from checks.doctor.catalogue import catalogue
from checks.doctor.diagnose import verdict_of
from checks.doctor.model import Report
from checks.outcome import Evidence, Finding, Outcome, Severity, Status

__all__ = ["merge", "titled", "with_host_rules"]

_SEVERITY = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
_CONFIDENCE = {"high": 0, "medium": 1, "low": 2}


def with_host_rules(report: Report, rules: Iterable[Outcome]) -> Report:
    """Add what the rules over the host's facts found; a cause that both name is one finding."""
    every = list(rules)
    found = [f for o in every for f in o.findings]
    outcomes = (*report.outcomes, _rules_outcome(every))
    return _report(_joined([*report.findings, *found]), outcomes)


def merge(reports: Sequence[Report]) -> Report:
    """Reports of one host's units as one; what all of them see of the host is said once."""
    if len(reports) == 1:
        return reports[0]
    outcomes = dict.fromkeys((o.check, o.status, o.why) for r in reports for o in r.outcomes)
    kept = tuple(Outcome(check, status, why=why) for check, status, why in outcomes)
    return _report(_joined([f for r in reports for f in r.findings]), kept)


def titled(report: Report, host: str) -> Report:
    """With the host's name at the verdict and at what was looked at, for a report over several hosts."""
    outcomes = tuple(replace(o, data={**o.data, "host": host}) for o in report.outcomes)
    return Report(report.findings, outcomes, f"{host}: {report.verdict}")


def _rules_outcome(rules: list[Outcome]) -> Outcome:
    """All rules in one line: which could not look, which crashed."""
    blind = [o for o in rules if o.status in {Status.UNKNOWN, Status.CRASHED}]
    why = "; ".join(f"{o.check}: {o.why}" for o in blind)
    status = Status.OK
    if any(o.status is Status.CRASHED for o in rules):
        status = Status.CRASHED
    elif blind and not any(o.status in {Status.OK, Status.FINDINGS} for o in rules):
        status = Status.UNKNOWN
    elif any(o.findings for o in rules):
        status = Status.FINDINGS
    return Outcome("host rules", status, why=why)


def _report(findings: list[Finding], outcomes: tuple[Outcome, ...]) -> Report:
    ordered = sorted(_roots(findings), key=_rank)
    return Report(tuple(ordered), outcomes, verdict_of(ordered, list(outcomes)))


def _rank(f: Finding) -> tuple[bool, int, int]:
    return (not f.root, _SEVERITY[f.severity], _CONFIDENCE.get(f.confidence, 3))


def _joined(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per cause: the first one's words, everybody's evidence and ways out, the worst severity."""
    known: dict[str, Finding] = {}
    for f in findings:
        known[f.slug] = _join(known[f.slug], f) if f.slug in known else f
    return list(known.values())


def _join(a: Finding, b: Finding) -> Finding:
    evidence: dict[tuple[str, str], Evidence] = {(e.source, e.text): e for e in (*a.evidence, *b.evidence)}
    fixes = {(x.change, x.value): x for x in (*a.fix, *b.fix)}
    return replace(
        a,
        severity=min(a.severity, b.severity, key=_SEVERITY.__getitem__),
        evidence=tuple(evidence.values())[:6],
        fix=tuple(fixes.values()),
        root=a.root or b.root,
        confidence=min(a.confidence, b.confidence, key=lambda c: _CONFIDENCE.get(c, 3)),
    )


def _roots(findings: list[Finding]) -> list[Finding]:
    """A cause that explains others makes them symptoms, whichever look found either."""
    book = catalogue().by_slug
    present = {f.slug: f for f in findings}
    strong = [f for f in findings if f.confidence != "low"]
    by: dict[str, str] = {}
    for f in sorted(strong, key=_rank):
        for other in book[f.slug].explains if f.slug in book else ():
            milder = other in present and _SEVERITY[f.severity] > _SEVERITY[present[other].severity]
            if other in present and not milder and by.get(f.slug) != other:
                by.setdefault(other, f.slug)
    return [
        _placed(f, by, findings, certain=any(s.severity is Severity.ERROR for s in strong)) for f in findings
    ]


def _placed(f: Finding, by: dict[str, str], findings: list[Finding], *, certain: bool) -> Finding:
    covers = tuple(o.code for o in findings if by.get(o.slug) == f.slug)
    f = replace(f, explains=tuple(sorted({*f.explains, *covers} - {""})))
    if f.slug in by:
        return replace(f, root=False)
    if certain and f.confidence == "low" and f.severity is Severity.ERROR:
        return replace(f, root=False, severity=Severity.WARNING)
    return f
