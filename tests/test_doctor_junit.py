"""JUnit XML of findings: what fails, what passes, what nobody looked at; well-formed whatever a log holds."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from checks.doctor import Inputs, diagnose
from checks.doctor.cli import show_diagnosis
from checks.doctor.junit import junit, write_junit
from checks.doctor.model import Report
from checks.outcome import Evidence, Finding, Outcome, Severity, Status
from inventory.errors import UsageError


def finding(**more: object) -> Finding:
    told = {"severity": Severity.ERROR, "title": "t", "cause": "c", **more}
    return Finding("TP001", "tp-heads-indivisible", **told)  # type: ignore[arg-type]


def suite(*found: Finding, looks: tuple[Outcome, ...] = ()) -> ET.Element:
    root = ET.fromstring(junit({"gpu01": Report(found, looks, "the verdict")}))
    only = root.find("testsuite")
    assert only is not None
    assert root.attrib["tests"] == only.attrib["tests"]
    return only


@pytest.mark.parametrize(
    ("found", "failures"),
    [
        (finding(), "1"),
        (finding(severity=Severity.WARNING), "0"),
        (finding(root=False), "0"),
    ],
)
def test_only_a_root_error_fails(found: Finding, failures: str) -> None:
    one = suite(found)
    assert (one.attrib["tests"], one.attrib["failures"]) == ("1", failures)
    assert "tp-heads-indivisible" in ET.tostring(one, encoding="unicode")


def test_what_was_looked_at_is_told_as_it_was() -> None:
    looks = (
        Outcome("log", Status.OK),
        Outcome("unit", Status.UNKNOWN, why="no systemd"),
        Outcome("kv", Status.CRASHED, why="KeyError"),
        Outcome("drift", Status.FINDINGS, why="a unit differs"),
    )
    one = suite(looks=looks)
    assert [one.attrib[k] for k in ("tests", "failures", "errors", "skipped")] == ["4", "0", "1", "1"]
    skipped = one.find("testcase/skipped")
    assert skipped is not None
    assert skipped.attrib["message"] == "no systemd"


@pytest.mark.parametrize("text", ["\x00\x08\x1b[31m", "<![CDATA[ ]]> & \"'", "\ud800", "\ufffe", "ä\u2028"])
def test_any_line_of_a_log_is_legal_xml(text: str) -> None:
    one = suite(finding(title=text, evidence=(Evidence("log", text, 3),)))
    assert one.find("testcase/failure") is not None


def test_a_secret_in_a_log_is_in_no_report() -> None:
    line = "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3)"
    report = diagnose(Inputs(log=[f"{line} --api-key sk-canary-0123456789abcdef\n".encode()]))
    assert report.findings
    assert "canary" not in junit({"log": report}) + repr(report)


def test_the_file_is_written_beside_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "doctor.xml"
    code = show_diagnosis(Inputs(log=[b"OSError: [Errno 98] Address already in use\n"]), junit=str(path))
    assert code == 4
    assert ET.parse(path).getroot().attrib["failures"] == "1"
    assert "port-in-use" in capsys.readouterr().out


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        write_junit(tmp_path / "none" / "x.xml", {})
