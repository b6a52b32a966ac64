"""Deployments that can't work, provisioned for real on a fresh host: provision refuses them or they fail, and
its report and the doctor, who looks at the host afterwards, name the same cause.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from checks.doctor.report import report_json
from checks.outcome import Severity
from tests.lab.doctor.conftest import Ward

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Start:
    """``by`` is who says no: the engine (exit 5) or a precondition (exit 4, nothing was changed)."""

    name: str
    slug: str
    changes: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    by: str = "engine"


STARTS = (
    Start("more ranks than cards", "tp-world-size-exceeds-gpus", {"tensor_parallel": 8}, by="precondition"),
    Start("heads don't divide", "tp-heads-indivisible", {"tensor_parallel": 3}),
    Start("legacy flag", "spec-legacy-flags", {"extra_args": ("--speculative-model", "x/y")}),
    Start("unknown flag", "cli-flag-unknown", {"extra_args": ("--no-such-flag",)}),
    Start("length over the model's", "max-model-len-over-model", {"max_model_len": 99_999_999}),
    Start("out of memory: graphs", "oom-cuda-graph-capture", fault="oom-graphs"),
    Start("wrong head", "spec-hidden-size-mismatch", fault="wrong-head"),
)


@pytest.mark.parametrize("start", STARTS, ids=lambda s: s.name)
def test_a_deployment_that_cannot_work(ward: Ward, start: Start) -> None:
    ward.fresh.engine(start.fault)
    report = ward.provision(ward.fresh, **start.changes)
    assert report.exit_code == (5 if start.by == "engine" else 4), report.error
    errors = [f.slug for f in report.findings if f.root and f.severity is Severity.ERROR]
    assert errors[0] == start.slug, report.error
    assert report.error.startswith(start.slug) or start.slug in report.error
    if start.by == "engine":
        found = ward.doctor(ward.fresh)
        roots = [f.slug for f in found.report.findings if f.root]
        assert roots[0] == start.slug, json.dumps(report_json(found.report), indent=1)
        assert found.code == 4


def test_a_token_that_the_hub_refuses(ward: Ward) -> None:
    """Where nothing serves yet it is the error; where the service runs, that only can't be renewed."""
    ward.hub.faults.add("/api/models/", status=401, message="Invalid credentials in Authorization header")
    try:
        report = ward.provision(ward.fresh)
        stopped, running = (ward.doctor(box, ward.deployment) for box in (ward.fresh, ward.served))
    finally:
        ward.hub.faults.clear()
    assert (report.exit_code, report.status) == (4, "refused")
    assert [f.slug for f in report.findings if f.severity is Severity.ERROR] == ["hf-unauthorized"]
    for found, severity in ((stopped, Severity.ERROR), (running, Severity.WARNING)):
        named = {f.slug: f.severity for f in found.report.findings}
        assert named.get("hf-unauthorized") is severity, found.report
    assert stopped.code == 4
