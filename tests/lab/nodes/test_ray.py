"""A Ray cluster of two hosts, formed by the units that a deployment with `distributed: ray` gets.

The engine on rank 0 is the stand-in: vLLM's CPU platform refuses Ray, so no model runs through it here.
Long, because Ray is 80 MB of wheels.
"""

import shutil
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.engine.build import build_standin_wheelhouse
from tests.lab.nodes.group import HOSTS, GroupFleet

pytestmark = [pytest.mark.lab, pytest.mark.long]
RAY = "2.60.0"


class RayFleet(GroupFleet):
    more: ClassVar[dict[str, Any]] = {"distributed": "ray"}

    def nodes(self) -> str:
        """`ray status`, asked on rank 0's host."""
        address = self.lab.host(HOSTS[0]).address
        return self.sh(f"/opt/eyas/envs/*/bin/ray status --address {address}:29501", HOSTS[0], check=False)

    def alive(self, said: str) -> int:
        active = said.partition("Active:")[2].partition("Pending:")[0]
        return active.count("node_")


@pytest.fixture(scope="module")
def fleet(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayFleet]:
    lab = make_lab(list(HOSTS), profile="rtx4090x1")
    try:
        made = RayFleet(lab, tmp_path_factory.mktemp("ray"))
        built = build_standin_wheelhouse(ray=RAY)
        assert built.lock.path
        shutil.copy(built.lock.path, made.home / "standin.txt")
        yield made
    finally:
        lab.down()


def test_the_units_form_a_cluster_of_both_hosts_that_heals(fleet: RayFleet) -> None:
    code, document, log = fleet.provision("one")
    assert code == 0, f"{log}{document}"
    assert fleet.sh("systemctl is-active eyas-fl-ray.service", HOSTS[0]) == "active"
    assert fleet.sh("ls /etc/systemd/system | grep -c fl-ray || true", HOSTS[1]) == "0"
    # vLLM would wait for all cards of the cluster before it serves; the stand-in doesn't.
    fleet.until(lambda: fleet.alive(fleet.nodes()) == 2, within=120, what="two nodes")
    assert "/2.0 GPU" in fleet.nodes()
    fleet.sh(f"kill -9 {fleet.engine(HOSTS[1])}", HOSTS[1])
    fleet.gone(within=15)
    fleet.back("one", within=120)
    fleet.until(lambda: fleet.alive(fleet.nodes()) == 2, within=120, what="two nodes again")
