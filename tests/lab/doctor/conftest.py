"""One lab for the faults: a host that serves the stand-in, and a fresh one for starts that never come up."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from inventory.hosts import load_inventory
from inventory.model import Deployment
from provision import converge
from provision.diagnosis import Diagnosed, diagnose_host
from provision.explain import explain
from provision.revisions import Branches
from provision.sources import Sources
from provision.ssh import SshOptions, connect
from tests.lab import demo
from tests.lab.doctor.faults import Box
from tests.lab.hosts import Lab
from tests.lab.hub import Hub


def quiet(_: str) -> None:
    pass


def small_model(folder: Path) -> None:
    """Small, and with enough heads to be split wrongly."""
    demo._fake_model(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))


@dataclass
class Ward:
    """The lab's two boxes, what they serve and where it comes from."""

    lab: Lab
    hub: Hub
    given: Sources
    deployment: Deployment
    served: Box
    fresh: Box

    @property
    def sources(self) -> Sources:
        """As a new command line has them: it asks the hub anew."""
        return replace(self.given, branches=Branches())

    def provision(self, box: Box, **changes: Any) -> converge.HostReport:
        """As an operator would who skips the questions that are asked beforehand."""
        host = load_inventory(self.lab.inventory).select(box.host.name)[0]
        options = converge.Options(sources=self.sources, explain=explain)
        wanted = self.deployment.model_copy(update=changes)
        return converge.provision_host(host, wanted, lambda h: connect(h, SshOptions()), options, quiet)

    def doctor(self, box: Box, deployment: Deployment | None = None) -> Diagnosed:
        host = load_inventory(self.lab.inventory).select(box.host.name)[0]
        return diagnose_host(host, deployment, lambda h: connect(h, SshOptions()), self.sources)


@pytest.fixture(scope="package")
def ward(keep_lab: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    models = tmp_path_factory.mktemp("models")
    stage = replace(demo._standin(quiet), models=models)
    for name in ("target", "head"):
        small_model(models / "eyas-lab" / name)
    lab = keep_lab(["gpu01", "gpu02"], profile="rtx4090x4", size=1200 << 20)
    with Hub(stage.models, bind=lab.network.gateway, cdn=lab.network.alias) as hub:
        sources = Sources(endpoint=hub.url, wheelhouse=stage.wheelhouse)
        served, fresh = (Box(lab.host(name)) for name in ("gpu01", "gpu02"))
        one = Ward(lab, hub, sources, stage.drafted, served, fresh)
        for box in (served, fresh):
            box.engine()
        report = one.provision(served)
        assert report.status == "changed", report.error
        yield one
    lab.down()
