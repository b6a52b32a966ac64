"""`invoke doctor --host` over several hosts with a shell that answers from a file: nobody hides another."""

import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checks.doctor import rules as doctor_rules
from checks.doctor.bundle import read_bundle
from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.facts import HostFacts
from checks.outcome import Severity
from inventory.errors import CheckRefused, HostUnreachable
from inventory.model import Deployment, Host, ModelRef
from provision import looking, observe, pending
from provision.diagnosis import Connect, diagnose_host, diagnose_hosts
from provision.run import Flags
from provision.shell import Result
from provision.sources import Sources

RECORDED = Path(__file__).resolve().parent / "hosts" / "h200x2-580.json"
UNIT = "eyas-demo.service"
START = f"2026-11-30T22:20:37+0000 gpu01 systemd[1]: Starting {UNIT} - eyas demo (vllm 0.33.0)...\n"
HEADS = "2026-11-30T22:20:40+0000 gpu01 python3[9]: ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).\n"  # noqa: E501 - a line of a log
OVER = (
    f"2026-11-30T22:20:41+0000 gpu01 systemd[1]: {UNIT}: Main process exited, code=exited, status=1/FAILURE\n"
)
READY = "2026-11-30T22:20:41+0000 gpu01 python3[9]: INFO:     Application startup complete.\n"


@dataclass
class Box:
    """A host's answers to the probe and to the doctor's own look. ``away``: it can't be reached."""

    name: str
    journal: str = ""
    active: str = ""
    away: bool = False
    damaged: bool = False
    ran: list[str] = field(default_factory=list)

    @property
    def host(self) -> Host:
        return Host(name=self.name, address="192.0.2.1")

    def run(self, argv: tuple[str, ...], *, stdin: bytes | None = None, **_: Any) -> Result:
        body, marker = self._look() if b"@eyas-look" in (stdin or b"") else self._probe()
        text = json.dumps(body)
        said = f"Welcome to {self.name}\n\n{marker} {len(text)}\n{text}\n"
        return Result(argv, 0, said[: len(said) // 2] if self.damaged else said, "", 0.1)

    def _probe(self) -> tuple[Any, str]:
        tree = json.loads(RECORDED.read_text())
        unit = {"load": "loaded", "active": self.active, "result": "", "enabled": "enabled", "drop_ins": []}
        tree["eyas"] = {**(tree.get("eyas") or {}), "units": {UNIT: unit} if self.active else {}}
        tree |= {"probe": tree.get("probe") or {"seconds": 0.1}}
        tree["os"]["time"] = time.time()
        return tree, "@eyas-probe 1"

    def _look(self) -> tuple[Any, str]:
        seen = {"journal": self.journal, "unit": "[Service]\n", "release": {"missing": "none"}, "configs": {}}
        return {"units": {UNIT: seen} if self.journal else {}, "kernel": ""}, "@eyas-look"


def opener(*boxes: Box) -> tuple[list[Host], Connect]:
    by_name = {b.name: b for b in boxes}

    @contextmanager
    def opened(host: Host) -> Iterator[Any]:
        if by_name[host.name].away:
            raise HostUnreachable("no SSH connection: timed out", hint="is it on?", host=host.name)
        yield by_name[host.name]

    return [b.host for b in boxes], opened


def told(capsys: pytest.CaptureFixture[str], *boxes: Box, **more: Any) -> tuple[int, dict[str, Any]]:
    hosts, connect = opener(*boxes)
    code = diagnose_hosts(hosts, None, Flags(as_json=True), connect=connect, **more)
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, out


FAILED = START + HEADS + OVER
GOOD = Box("gpu02", START + READY, "active")


def test_a_host_that_is_away_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, Box("gpu03", away=True), GOOD)
    assert code == 3
    assert "gpu02: no cause found" in out["verdict"]
    assert "gpu03: could not look: no SSH connection" in out["verdict"]
    assert {o["data"]["host"] for o in out["outcomes"]} == {"gpu02", "gpu03"}


def test_an_error_on_one_host_outweighs_another_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, Box("gpu01", FAILED, "failed"), GOOD, Box("gpu03", away=True))
    assert code == 4
    first = out["findings"][0]
    assert (first["host"], first["slug"], first["root"]) == ("gpu01", "tp-heads-indivisible", True)
    assert {f["host"] for f in out["findings"] if f["severity"] == "error"} == {"gpu01"}


def test_an_answer_that_was_cut_is_could_not_look(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, Box("gpu01", FAILED, "failed", damaged=True))
    assert code == 3
    assert out["findings"] == []


def crash(_: Case) -> Iterator[Candidate]:
    raise ZeroDivisionError("a bug of ours")


def test_a_rule_that_crashes_is_shown_and_hides_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor_rules.RULES, "kv-none", crash)
    code, out = told(capsys, Box("gpu01", FAILED, "failed"))
    assert (code, out["findings"][0]["slug"]) == (4, "tp-heads-indivisible")
    crashed = [o for o in out["outcomes"] if o["status"] == "crashed"]
    assert [(o["check"], o["why"]) for o in crashed] == [("kv-none", "ZeroDivisionError: a bug of ours")]


def test_a_crash_alone_is_no_clean_bill(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor_rules.RULES, "kv-none", crash)
    hosts, connect = opener(GOOD)
    assert diagnose_hosts(hosts, None, Flags(), connect=connect) == 1
    assert "crashed kv-none: ZeroDivisionError: a bug of ours (please report it)" in capsys.readouterr().out


def test_one_host_that_crashes_us_hides_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = observe.probe

    def probe(shell: Any, *rest: Any) -> HostFacts:
        if shell.host.name == "gpu01":
            raise KeyError("surprise")
        return real(shell, *rest)

    monkeypatch.setattr(looking, "probe", probe)
    code, out = told(capsys, Box("gpu01", FAILED, "failed"), GOOD)
    assert code == 1
    assert "gpu01: could not look: a bug in eyas: KeyError: 'surprise'" in out["verdict"]
    assert "gpu02: no cause found" in out["verdict"]


# ---- what is kept


def test_bundles_and_xml_hold_every_host(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    junit = tmp_path / "doctor.xml"
    code, _ = told(
        capsys,
        Box("gpu01", FAILED, "failed"),
        Box("gpu03", away=True),
        save=str(tmp_path / "b"),
        junit=str(junit),
    )
    assert code == 4
    assert [read_bundle(p).host for p in (tmp_path / "b").glob("*.tar.gz")] == ["gpu01"]
    suites = {s.attrib["name"]: s for s in ET.parse(junit).getroot()}
    assert set(suites) == {"gpu01", "gpu03"}
    failure = suites["gpu01"].find("testcase/failure")
    assert failure is not None
    assert failure.attrib["type"] == "TP001"
    assert suites["gpu03"].attrib["skipped"] == "1"


def test_fix_keeps_the_bundle_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hosts, connect = opener(Box("gpu01", FAILED, "failed"))
    flags = Flags(as_json=True)
    code = diagnose_hosts(hosts, None, flags, save=str(tmp_path), fix=True, yes=True, connect=connect)
    assert code == 4
    assert json.loads(capsys.readouterr().out)["hosts"][0]["status"] == "by-hand"
    assert len(list(tmp_path.glob("doctor-gpu01-*.tar.gz"))) == 1


# ---- a deployment that can't be made


@pytest.mark.parametrize(
    ("active", "severity"), [("active", Severity.WARNING), ("failed", Severity.ERROR), ("", Severity.ERROR)]
)
def test_a_refused_token_is_an_error_where_nothing_serves(
    monkeypatch: pytest.MonkeyPatch, active: str, severity: Severity
) -> None:
    def refused(*_: Any) -> Any:
        raise CheckRefused("x/y@main: Invalid credentials", cause="hf-unauthorized", hint="a new token")

    monkeypatch.setattr(pending, "want_for", refused)
    box = Box("gpu01", START + READY if active else "", active)
    hosts, connect = opener(box)
    demo = Deployment(name="demo", engine="vllm", target=ModelRef(repo="x/y"))
    found = diagnose_host(hosts[0], demo, connect, Sources())
    assert found.error is None, found.error
    named = {f.slug: f for f in found.report.findings}
    assert named["hf-unauthorized"].severity is severity
    assert "Invalid credentials" in named["hf-unauthorized"].evidence[0].text
    assert found.code == (0 if severity is Severity.WARNING else 4)
