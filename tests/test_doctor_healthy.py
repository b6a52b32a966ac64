"""Services that came up, with lines that read like failures: no error is named. And which start counts."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from checks.doctor import Inputs, diagnose
from checks.doctor.patterns import harmless
from checks.outcome import Severity, Status
from tests.test_doctor_cases import DRESSES

CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).resolve().parent / "cases" / "healthy.toml").read_text()
)["case"]


@pytest.mark.parametrize("dress", ["", "journal", "kubernetes", "wrapped-at-120"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_no_error_is_named(case: dict[str, Any], dress: str) -> None:
    text = DRESSES[dress](case["log"]) if dress else case["log"]
    report = diagnose(Inputs(log=[text.encode()], facts={}, engine=case.get("engine", "vllm")))
    assert not report.errors, report.verdict
    assert not [o for o in report.outcomes if o.status is Status.CRASHED]


def test_a_quoted_failure_hides_no_real_one() -> None:
    quoted = "INFO 11-05 12:20:00 [logger.py:43] Received request 1: prompt: 'CUDA out of memory. Tried'\n"
    real = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB.\n"
    assert harmless().search("received request 1: prompt")
    report = diagnose(Inputs(log=[(quoted + real).encode()]))
    assert [e.line for f in report.findings for e in f.evidence] == [2]


UP = "INFO:     Application startup complete.\n"
ODD = "RuntimeError: SM 12.x requires CUDA >= 12.9.\n"


@pytest.mark.parametrize(
    ("log", "severity"),
    [
        (ODD + UP, Severity.WARNING),
        (ODD, Severity.ERROR),
        (UP + ODD, Severity.ERROR),
        (ODD + UP + "EngineDeadError: EngineCore encountered an issue.\n", Severity.ERROR),
    ],
)
def test_what_did_not_stop_the_start_is_a_warning(log: str, severity: Severity) -> None:
    report = diagnose(Inputs(log=[log.encode()]))
    assert next(f for f in report.findings if f.slug == "cuda-toolchain-mixed").severity is severity


START = "Nov 30 1{}:00:00 h systemd[1]: Started vllm.service - vLLM.\n"
OOM = "Nov 30 1{}:00:09 h vllm[7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
PORT = "Nov 30 1{}:00:01 h vllm[8]: OSError: [Errno 98] Address already in use\n"
XID = "Nov 30 1{}:00:02 h kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=0, GPU has fallen off the bus.\n"


def journal(*lines: str) -> bytes:
    return "".join(line.format(i) for i, line in enumerate(lines)).encode()


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ((START, OOM, START, PORT), "port-in-use"),
        ((START, PORT, START, OOM), "oom-weights-load"),
        ((START, PORT, START, OOM, START), "oom-weights-load"),
        ((START, PORT, START, XID), "gpu-xid-fell-off-bus"),
        ((START, XID, START, PORT), "gpu-xid-fell-off-bus"),
    ],
)
def test_the_last_start_that_says_anything_counts(lines: tuple[str, ...], first: str) -> None:
    report = diagnose(Inputs(log=[journal(*lines)]))
    assert report.findings[0].slug == first
    assert report.errors
