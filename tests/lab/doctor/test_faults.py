"""The doctor against faults on real hosts: each injected, named, and healed again."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from checks.doctor.report import report_json
from checks.outcome import Severity
from inventory.hosts import load_inventory
from provision import converge
from provision.diagnosis import Diagnosed, diagnose_host
from provision.ssh import SshOptions, connect
from provision.want import Sources
from tests.lab import demo
from tests.lab.doctor.faults import FAULTS, Box, Fault
from tests.lab.hosts import Lab
from tests.lab.hub import Hub

pytestmark = pytest.mark.lab


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def box(make_lab: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A host that serves the stand-in, on a disk that can be filled."""
    models = tmp_path_factory.mktemp("models")
    stage = replace(demo._standin(quiet), models=models)
    for name in ("target", "head"):
        small_model(models / "eyas-lab" / name)
    lab = make_lab(["gpu01"], profile="rtx4090x1", size=1200 << 20)
    with Hub(stage.models, bind=lab.network.gateway, cdn=lab.network.alias) as hub:
        sources = Sources(endpoint=hub.url, wheelhouse=stage.wheelhouse)
        host = load_inventory(lab.inventory).select("gpu01")[0]
        options = converge.Options(sources=sources)
        report = converge.provision_host(
            host, stage.drafted, lambda h: connect(h, SshOptions()), options, quiet
        )
        assert report.status == "changed", report.error
        one = Box(lab.host("gpu01"), hub=hub, deployment=stage.drafted, sources=sources)
        one.engine()
        yield one


def small_model(folder: Path) -> None:
    """Small, and with enough heads to be split wrongly."""
    demo._fake_model(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))


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


def test_a_token_that_the_hub_refuses_is_named(box: Box) -> None:
    """Before anything is downloaded again: the running service is not what is wrong."""
    assert box.hub
    host = load_inventory(box.host.lab.inventory).select(box.host.name)[0]
    box.hub.faults.add("/api/models/", status=401, message="Invalid credentials in Authorization header")
    try:
        opened = lambda h: connect(h, SshOptions())  # noqa: E731
        found = diagnose_host(host, box.deployment, opened, box.sources or Sources())
    finally:
        box.hub.faults.clear()
    named = {f.slug: f.severity for f in found.report.findings}
    assert named.get("hf-unauthorized") is Severity.WARNING, found.report


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
