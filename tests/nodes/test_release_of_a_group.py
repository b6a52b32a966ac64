"""One release id for all ranks, a rank's own argv and addresses in it; Ray's unit on rank 0 alone."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from inventory.catalogue import load_catalogue
from inventory.command import render, render_env
from inventory.errors import UsageError
from inventory.model import Deployment, ModelRef
from inventory.ray import ray_argv
from inventory.roles import Node
from provision.release import ReleaseWant, Served, make_release

NODES = [Node(n, "10.0.0.1", 30000, f"10.0.0.{n + 1}", f"eth{n}") for n in range(2)]


def deployment(**changes: Any) -> Deployment:
    base: dict[str, Any] = {"name": "big", "engine": "vllm", "target": ModelRef(repo="o/m")}
    return Deployment(**{**base, "tensor_parallel": 2, "nodes": 2, "master_port": 30000, **changes})


def served(rank: int, **changes: Any) -> Served:
    members = [{"rank": n.rank, "host": f"h{n.rank}", "address": n.address} for n in NODES]
    group = {"rank": rank, "port": 30001, "members": members}
    return replace(
        Served(("/e/bin/vllm",), {"A": "1"}, "0.33.0", "l" * 64, "lock", {}, 0, {}, (), None, group),
        **changes,
    )


def document(release: ReleaseWant) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(release.files["release.json"])
    return found


def test_a_rank_knows_its_group_and_brings_the_programs_for_it() -> None:
    release = make_release(deployment(), served(1))
    assert document(release)["group"]["rank"] == 1
    assert document(release)["timeouts"]["peer_s"] > 0
    assert {"group.py", "ranked.py"} <= set(release.files)
    alone = make_release(deployment(nodes=1), served(0, group=None))
    assert "group" not in document(alone)
    assert not {"group.py", "ranked.py"} & set(alone.files)


def test_what_a_host_may_have_of_its_own_is_no_setting_of_the_group() -> None:
    settings = document(make_release(deployment(env={"X": "1"}, interface="eth0"), served(0)))["settings"]
    assert not {"env", "interface"} & set(settings)


@pytest.mark.parametrize(("version", "ray"), [("0.33.0", False), ("0.10.2", True)])
def test_auto_is_native_where_the_version_can(version: str, ray: bool) -> None:
    argv = render(deployment(), load_catalogue().release("vllm", version), node=NODES[1])
    assert ("--distributed-executor-backend" in argv) is ray
    assert ("--nnodes" in argv) is not ray


def test_the_environment_names_this_nodes_address_and_interface() -> None:
    env = render_env(deployment(), load_catalogue().release("vllm", "0.33.0"), node=NODES[1])
    told = {k: env[k] for k in ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    assert told == {
        "VLLM_HOST_IP": "10.0.0.2",
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "=eth1",
    }


def test_ray_head_and_worker_state_every_port() -> None:
    head, worker = (ray_argv(deployment(), n, run_dir="/run/x") for n in NODES)
    assert head[:5] == ("ray", "start", "--head", "--port", "30000")
    assert worker[:4] == ("ray", "start", "--address", "10.0.0.1:30000")
    for argv in (head, worker):
        assert argv[-1] == "--block"
        ports = [int(v) for k, v in pairwise(argv) if k.endswith("-port")]
        assert len(set(ports)) == len(ports) >= 8
    assert head[head.index("--include-dashboard") + 1] == "false"
    with pytest.raises(UsageError, match="no room for Ray's worker ports"):
        ray_argv(deployment(master_port=65000), NODES[0], run_dir="/run/x")


def test_only_rank_0_of_a_ray_group_has_the_heads_unit() -> None:
    head = make_release(deployment(), served(0, ray_argv=("/e/bin/ray", "start", "--head", "--block")))
    unit = head.units["eyas-big-ray.service"].decode()
    assert "ExecStart=/e/bin/ray start --head --block\n" in unit
    assert 'Environment="A=1"\n' in unit
    assert "After=eyas-big-ray.service" in head.units["eyas-big.service"].decode()
    other = make_release(deployment(), served(1))
    assert set(other.units) == {"eyas-big.service", "eyas-big-health.service", "eyas-big-health.timer"}
    assert "ray" not in other.units["eyas-big.service"].decode()
