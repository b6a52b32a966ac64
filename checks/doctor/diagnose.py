"""From inputs to a report: scan, rules, root causes before their symptoms, computed fixes, one sentence."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from checks.doctor.case import Case
from checks.doctor.catalogue import Catalogue, Code, FixStep, catalogue
from checks.doctor.metrics import parse_metrics
from checks.doctor.model import Candidate, Inputs, Report
from checks.doctor.redact import Redactor
from checks.doctor.rules import RULES
from checks.doctor.scan import scan
from checks.doctor.unit import parse_unit
from checks.outcome import Evidence, Finding, Fix, Outcome, Severity, Status

__all__ = ["diagnose", "verdict_of"]

CONFIDENCE = {3: "high", 2: "medium", 1: "low"}
_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def diagnose(inputs: Inputs) -> Report:
    """Name the causes. Pure apart from consuming ``inputs.log``; never raises on odd content."""
    book = catalogue()
    case, outcomes = _look(inputs, book)
    candidates: list[Candidate] = []
    for name, rule in RULES.items():
        try:
            candidates += list(rule(case))
        except Exception as e:  # noqa: BLE001 - one broken rule must not hide the others
            outcomes.append(Outcome(name, Status.CRASHED, why=f"{type(e).__name__}: {e}"))
    merged = _unknown(case, _current(case, _merge(candidates)))
    findings = _findings(merged, book, inputs)
    return Report(tuple(findings), tuple(outcomes), verdict_of(findings, outcomes))


def _look(inputs: Inputs, book: Catalogue) -> tuple[Case, list[Outcome]]:
    """Read every input; say for each what was seen or why it could not be."""
    outcomes: list[Outcome] = []
    case = Case(engine=inputs.engine, version=inputs.engine_version, sources=inputs.sources)
    for name, blocks in (("log", inputs.log), ("kernel", inputs.kernel)):
        if blocks is None:
            outcomes.append(_unseen(inputs, name))
            continue
        view = scan(blocks, book.signatures)
        setattr(case, name, view)
        why = "not text" if view.binary else "empty" if not view.size else ""
        status = Status.UNKNOWN if why else Status.OK
        outcomes.append(
            Outcome(
                name,
                status,
                why=why,
                data={"lines": view.lines, "bytes": view.size, "starts": len(view.starts)},
            )
        )
    if inputs.facts is not None:
        case.facts = inputs.facts
    if inputs.unit is not None:
        case.unit = parse_unit(inputs.unit)
    if inputs.metrics is not None:
        case.metrics = parse_metrics(inputs.metrics)
    if inputs.drift:
        outcomes.append(Outcome("drift", Status.FINDINGS, why="; ".join(inputs.drift)))
    elif inputs.unseen.get("drift"):
        outcomes.append(Outcome("drift", Status.SKIPPED, why=inputs.unseen["drift"]))
    outcomes += [_seen(inputs, name, case) for name in ("facts", "unit", "metrics")]
    return case, outcomes


def _seen(inputs: Inputs, name: str, case: Case) -> Outcome:
    if getattr(inputs, name) is None:
        return _unseen(inputs, name)
    if name == "metrics" and case.metrics and case.metrics.error:
        return Outcome(name, Status.UNKNOWN, why=case.metrics.error)
    return Outcome(name, Status.OK)


def _unseen(inputs: Inputs, name: str) -> Outcome:
    return Outcome(name, Status.UNKNOWN, why=inputs.unseen.get(name, "not given"))


def _merge(candidates: Iterable[Candidate]) -> list[Candidate]:
    """One candidate per cause and start: strongest, then earliest; evidence and values joined."""
    best: dict[tuple[str, int], Candidate] = {}
    for one in candidates:
        key = (one.cause, one.start)
        best[key] = _join(best[key], one) if key in best else one
    return list(best.values())


def _join(a: Candidate, b: Candidate) -> Candidate:
    first, second = (a, b) if (a.strength, -_line(a)) >= (b.strength, -_line(b)) else (b, a)
    evidence = list(first.evidence)
    evidence += [e for e in second.evidence if all((e.text, e.line) != (s.text, s.line) for s in evidence)]
    line = min(_line(a), _line(b)) if a.line >= 0 or b.line >= 0 else -1
    severity = first.severity if a.severity and b.severity else None
    return replace(
        first,
        evidence=tuple(evidence[:5]),
        values={**second.values, **first.values},
        line=line,
        severity=severity,
    )


def _line(one: Candidate) -> int:
    return one.line if one.line >= 0 else 10**12


def _current(case: Case, found: list[Candidate]) -> list[Candidate]:
    """Causes of the last start that says anything; what only earlier starts had becomes a warning."""
    ready = {h.start for mark in ("ready", "spec.metrics", "http.200", "running") for h in case.all(mark)}
    told = {c.start for c in found if c.start >= 0} | _sticky(case, found)
    if not told:
        return found
    last = max(told | ready)
    out: dict[str, Candidate] = {}
    for one in sorted(found, key=lambda c: -c.start):
        if one.cause in out:
            seen = out[one.cause]
            note = seen.note.replace("an earlier start", "earlier starts") or "in several starts"
            out[one.cause] = replace(
                _join(seen, one),
                line=seen.line,
                start=seen.start,
                strength=seen.strength,
                severity=seen.severity,
                note=note,
            )
        elif 0 <= one.start < last:
            healthy = last not in told
            note = "in an earlier start; the last one came up" if healthy else "in an earlier start"
            out[one.cause] = replace(
                one,
                strength=max(1, one.strength - (1 if healthy else 2)),
                severity=Severity.WARNING,
                note=note,
                past=True,
            )
        else:
            out[one.cause] = one
    return [_repeated(case, _outlived(case, one)) for one in out.values()]


def _outlived(case: Case, one: Candidate) -> Candidate:
    """What was said before the service came up, and did not stop it, is no error."""
    up = next((h.line for h in case.all("ready") if h.start == one.start), -1)
    failed = any(
        h.start == one.start and h.line > up for h in case.all("symptom.engine") + case.all("exception")
    )
    if not 0 <= one.line < up or failed or one.severity is Severity.WARNING:
        return one
    return replace(one, severity=Severity.WARNING, note="before it came up, which it did")


def _sticky(case: Case, found: list[Candidate]) -> set[int]:
    """The last start, when a cause that belongs to no start (a card, the kernel) was told after it began."""
    begins = case.log.starts if case.log and case.kernel is None else []
    late = begins and any(c.start < 0 and c.strength > 1 and c.line > begins[-1] for c in found)
    return {len(begins)} if late else set()


def _repeated(case: Case, one: Candidate) -> Candidate:
    """Say in how many starts the deciding line was seen."""
    ids = {h.sig.id for h in case.hits if h.line == one.line}
    starts = {h.start for h in case.hits if h.sig.id in ids and h.sig.cause + h.sig.mark != "exception"}
    return replace(one, note=f"in {len(starts)} starts") if len(starts) > 1 and not one.note else one


def _unknown(case: Case, found: list[Candidate]) -> list[Candidate]:
    """The engine failed and nothing is known: say so with its earliest exception."""
    if found or not case.log:
        return found
    stop = case.first("shutdown")
    failed = [
        h for h in case.all("symptom.engine") + case.all("symptom.unit") if stop is None or h.line < stop.line
    ]
    failed = [h for h in failed if "status=0" not in h.text]
    if not failed:
        return found
    first = next((h for h in case.all("exception") if h.start == failed[0].start), failed[0])
    return [
        Candidate("unrecognised-failure", 1, case.evidence(first, failed[0]), {}, first.line, first.start)
    ]


def _findings(found: list[Candidate], book: Catalogue, inputs: Inputs) -> list[Finding]:
    known = {c.cause: c for c in found if c.cause in book.by_slug}
    explained = _explained(known, book)
    findings = [_finding(c, book.by_slug[c.cause], explained, known, book, inputs) for c in known.values()]
    order = {f.code: _rank(f, known) for f in findings}
    return sorted(findings, key=lambda f: order[f.code])


def _rank(finding: Finding, known: Mapping[str, Candidate]) -> tuple[int, ...]:
    one = known[finding.slug]
    return (int(not finding.root), int(one.past), -one.strength, _ORDER[finding.severity], _line(one))


def _explained(known: Mapping[str, Candidate], book: Catalogue) -> dict[str, str]:
    """Cause -> the cause that explains it. A hint explains nothing that is named outright."""
    found: dict[str, str] = {}
    for cause, one in sorted(known.items(), key=lambda kv: (-kv[1].strength, _line(kv[1]))):
        for other in book.by_slug[cause].explains:
            strong = other in known and one.strength >= min(2, known[other].strength)
            if strong and other not in found and found.get(cause) != other:
                found[other] = cause
    return found


def _finding(
    one: Candidate,
    code: Code,
    explained: Mapping[str, str],
    known: Mapping[str, Candidate],
    book: Catalogue,
    inputs: Inputs,
) -> Finding:
    severity = one.severity or code.severity
    weak = one.strength == 1 and severity is Severity.ERROR and any(c.strength > 1 for c in known.values())
    root = one.cause not in explained and not weak
    covers = tuple(sorted(book.by_slug[c].code for c, by in explained.items() if by == one.cause))
    note = f" ({one.note})" if one.note else ""
    clear = Redactor().text
    evidence = tuple(replace(e, text=clear(e.text)) for e in one.evidence if isinstance(e, Evidence))
    fixes = tuple(inputs.replan(code.slug, one.values)) if inputs.replan else ()
    return Finding(
        code=code.code,
        slug=code.slug,
        severity=Severity.WARNING if weak else severity,
        title=code.title + note,
        cause=f"{code.what} {code.why}",
        evidence=evidence,
        fix=fixes + _fixes(code.fix, one.values),
        confidence=CONFIDENCE[one.strength],
        root=root,
        explains=covers,
        host=inputs.host,
    )


def _fixes(steps: Sequence[FixStep], values: Mapping[str, Any]) -> tuple[Fix, ...]:
    """The steps that can be said with these values; where half of them is known, those that need none."""
    have = {k for k, v in values.items() if v not in {None, ""}}
    usable = [s for s in steps if s.asks <= have and not set(s.unless) & have]
    usable = usable or [s for s in steps if not s.asks]
    return tuple(
        Fix(s.change, _fill(s.value, values), _fill(s.command, values), _fill(s.why, values)) for s in usable
    )


def _fill(template: str, values: Mapping[str, Any]) -> str:
    text = re.sub(r"(?<!\{)\{(\w+)\}(?!\})", lambda m: str(values.get(m[1], m[0])), template)
    return text.replace("{{", "{").replace("}}", "}")


def verdict_of(findings: list[Finding], outcomes: list[Outcome]) -> str:
    looked = [o.check for o in outcomes if o.status is Status.OK]
    blind = [f"{o.check} ({o.why})" for o in outcomes if o.status in {Status.UNKNOWN, Status.CRASHED}]
    rest = f"; could not see {', '.join(blind)}" if blind else ""
    failed = any(f.slug == "unrecognised-failure" for f in findings)
    roots = [f for f in findings if f.root and f.slug != "unrecognised-failure"]
    roots = [f for f in roots if f.severity is Severity.ERROR] if failed else roots
    if roots:
        top = roots[0]
        fix = f"; next: {top.fix[0].change} {top.fix[0].value}".rstrip() if top.fix else ""
        return f"{top.code} {top.slug}: {top.title}{fix}"
    if not looked:
        return f"could not look{rest}"
    return f"no cause found; looked at {', '.join(looked)}{rest}"
