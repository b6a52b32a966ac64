"""Findings as JUnit XML, for what shows test results: a suite per host, a case per look and per finding."""

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from checks.doctor.model import Report
from checks.doctor.report import fix_step
from checks.outcome import Finding, Outcome, Severity, Status
from inventory.errors import UsageError

__all__ = ["junit", "write_junit"]

#: What XML 1.0 can't hold, even escaped.
_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(reports: Mapping[str, Report]) -> str:
    """One document over the reports by host ("log" for a file).

    A root cause that is an error is a failure; what it explains and warnings pass and tell their text; what
    nobody could see is skipped with its reason; a check that crashed is an error.
    """
    suites = [_suite(name, report) for name, report in reports.items()]
    top = ET.Element("testsuites", {"name": "doctor", **_totals(suites)})
    top.extend(suites)
    ET.indent(top)
    return ET.tostring(top, encoding="unicode", xml_declaration=True) + "\n"


def write_junit(path: Path, reports: Mapping[str, Report]) -> None:
    """Raises UsageError when the file can't be written."""
    try:
        path.write_text(junit(reports), encoding="utf-8")
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}", hint="--junit takes a file's name") from e


def _suite(name: str, report: Report) -> ET.Element:
    suite = ET.Element("testsuite", name=_legal(name))
    for outcome in report.outcomes:
        _look(suite, name, outcome)
    for finding in report.findings:
        _found(suite, name, finding)
    counts = {
        "tests": len(suite),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    suite.attrib |= {k: str(n) for k, n in counts.items()}
    ET.SubElement(suite, "system-out").text = _legal(report.verdict)
    return suite


def _totals(suites: list[ET.Element]) -> dict[str, str]:
    return {k: str(sum(int(s.attrib[k]) for s in suites)) for k in ("tests", "failures", "errors", "skipped")}


def _case(suite: ET.Element, host: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=_legal(f"doctor.{host}"), name=_legal(name))


def _look(suite: ET.Element, host: str, outcome: Outcome) -> None:
    case = _case(suite, host, f"look: {outcome.check}")
    if outcome.status is Status.CRASHED:
        ET.SubElement(case, "error", type="crashed", message=_legal(outcome.why))
    elif outcome.status in {Status.UNKNOWN, Status.SKIPPED}:
        ET.SubElement(case, "skipped", message=_legal(outcome.why))


def _found(suite: ET.Element, host: str, f: Finding) -> None:
    case = _case(suite, host, f"{f.code} {f.slug}")
    if f.root and f.severity is Severity.ERROR:
        failure = ET.SubElement(case, "failure", type=f.code, message=_legal(f.title))
        failure.text = _legal(_text(f))
    else:
        ET.SubElement(case, "system-out").text = _legal(f"{f.severity.value}: {_text(f)}")


def _text(f: Finding) -> str:
    seen = (f"seen {e.source}{f':{e.line}' if e.line is not None else ''}: {e.text}" for e in f.evidence)
    fixes = (fix_step(n, x.change, x.value, x.command, x.why) for n, x in enumerate(f.fix, 1))
    return "\n".join([f.title, *seen, f.cause, *fixes])


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)
