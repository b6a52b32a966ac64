"""The doctor against faults on real hosts: each injected, named, and healed again."""

import json
from collections.abc import Callable

import pytest

from checks.doctor.report import report_json
from checks.outcome import Severity
from inventory.hosts import load_inventory
from provision.diagnosis import Diagnosed, diagnose_host
from provision.sources import Sources
from provision.ssh import SshOptions, connect
from tests.lab.doctor.conftest import Ward
from tests.lab.doctor.faults import FAULTS, Box, Fault
from tests.lab.hosts import Lab

pytestmark = pytest.mark.lab


@pytest.fixture
def box(ward: Ward) -> Box:
    return ward.served


def diagnosed(box: Box) -> Diagnosed:
    host = load_inventory(box.host.lab.inventory).select(box.host.name)[0]
    return diagnose_host(host, None, lambda h: connect(h, SshOptions()), Sources())


def first_root(found: Diagnosed) -> str:
    assert found.error is None, found.error
    return next((f.slug for f in found.report.findings if f.root), "nothing")


def test_a_healthy_host_has_no_error(box: Box) -> None:
    box.serves()
    found = diagnosed(box)
    assert found.code == 0, found.report.verdict
    assert [f for f in found.report.findings if f.severity is Severity.ERROR] == []
    looked = {o.check: o.status.value for o in found.report.outcomes}
    assert "crashed" not in looked.values()
    assert {looked[c] for c in ("log", "facts", "unit", "metrics")} == {"ok"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_each_fault_is_named_first(box: Box, fault: Fault) -> None:
    try:
        fault.inject(box)
        if fault.after == "fails":
            box.fails()
        found = diagnosed(box)
        assert first_root(found) == fault.slug, json.dumps(report_json(found.report), indent=1)
        assert found.code == (0 if fault.slug == "spec-low-acceptance" else 4)
    finally:
        box.heal()


def test_after_all_of_that_it_is_healthy_again(box: Box) -> None:
    box.serves()
    found = diagnosed(box)
    assert found.code == 0, found.report.verdict


@pytest.mark.parametrize(
    ("profile", "slug"),
    [
        ("h200x8+fabric-stopped", "driver-fabric-manager"),
        ("rtx4090x1+mismatch", "driver-nvml-mismatch"),
        ("rtx4090x1+xid79", "gpu-xid-fell-off-bus"),
    ],
)
def test_a_host_without_a_service_is_judged_by_its_facts(
    make_lab: Callable[..., Lab], profile: str, slug: str
) -> None:
    lab = make_lab(["gpu09"], profile=profile)
    try:
        found = diagnosed(Box(lab.host("gpu09")))
    finally:
        lab.down()
    assert first_root(found) == slug, json.dumps(report_json(found.report), indent=1)
    assert found.code == 4
    why = {o.check: o.why for o in found.report.outcomes}
    assert why["log"] == "no eyas service on this host"
    assert "crashed" not in {o.status.value for o in found.report.outcomes}
