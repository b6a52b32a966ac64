"""Which hosts form a group: by variable, by inventory group, by number; never half a group."""

from typing import Any

import pytest

from checks.doctor.model import Report
from checks.facts import HostFacts
from checks.outcome import Finding, Fix, Severity
from checks.rule import code_of
from inventory.catalogue import load_catalogue
from inventory.command import render
from inventory.errors import EyasError, UsageError
from inventory.model import Deployment, Host, ModelRef
from inventory.roles import Node
from provision.diagnosis import Diagnosed
from provision.looking import Sight
from provision.mend import _remedy
from provision.nodes.roster import groups_of
from provision.want import Sources, want_for


def deployment(**changes: Any) -> Deployment:
    base: dict[str, Any] = {"name": "big", "engine": "vllm", "target": ModelRef(repo="o/m")}
    return Deployment(**{**base, "tensor_parallel": 2, "nodes": 2, **changes})


def hosts(*names: str, **words: Any) -> list[Host]:
    return [Host(name=n, address=n, **words) for n in names]


def ranks(every: list[Host], d: Deployment, **other: Deployment) -> dict[str, list[str]]:
    _, groups = groups_of(every, {h.name: other.get(h.name, d) for h in every})
    return {g.name: [h.name for h in g.hosts] for g in groups}


def test_just_enough_hosts_are_a_group_in_inventory_order() -> None:
    assert ranks(hosts("a", "b"), deployment()) == {"big": ["a", "b"]}
    assert ranks(hosts("a", "b"), deployment(head="b")) == {"big": ["b", "a"]}


def test_hosts_that_serve_alone_are_left_alone() -> None:
    alone, groups = groups_of(
        hosts("a", "b", "c"),
        {"a": deployment(), "b": deployment(nodes=1, name="small"), "c": deployment()},
    )
    assert [h.name for h in alone] == ["b"]
    assert [[h.name for h in g.hosts] for g in groups] == [["a", "c"]]


def test_several_groups_by_inventory_group_or_variable() -> None:
    racks = [*hosts("a", "b", groups=("all", "rack1")), *hosts("c", "d", groups=("all", "rack2"))]
    assert ranks(racks, deployment()) == {"rack1": ["a", "b"], "rack2": ["c", "d"]}
    named = [h.model_copy(update={"vars": {"eyas_group": g}}) for h, g in zip(racks, "xyxy", strict=True)]
    assert ranks(named, deployment()) == {"x": ["a", "c"], "y": ["b", "d"]}


@pytest.mark.parametrize("count", [1, 3, 5])
def test_no_half_group(count: int) -> None:
    with pytest.raises(EyasError, match=f"takes 2 nodes, and {count} hosts? (is|are) selected"):
        ranks(hosts(*"abcde"[:count]), deployment())


def test_a_named_group_must_be_whole() -> None:
    named = [h.model_copy(update={"vars": {"eyas_group": "x"}}) for h in hosts("a", "b")]
    with pytest.raises(EyasError, match="group big of deployment big has 1 of 2 nodes"):
        ranks([*named, *hosts("c")], deployment())


def test_ranks_serve_the_same_but_for_env_and_interface() -> None:
    own = deployment(env={"A": "1"}, interface="eth1")
    assert ranks(hosts("a", "b"), deployment(interface="eth0"), b=own) == {"big": ["a", "b"]}
    with pytest.raises(EyasError, match="differs from a's in max_model_len"):
        ranks(hosts("a", "b"), deployment(), b=deployment(max_model_len=5))


def test_a_head_that_is_no_member() -> None:
    with pytest.raises(EyasError, match="head z of deployment big is none of its hosts"):
        ranks(hosts("a", "b"), deployment(head="z"))


def test_keys_that_can_not_be() -> None:
    with pytest.raises(ValueError, match="3 ranks, which 2 nodes can't share"):
        deployment(tensor_parallel=3)
    with pytest.raises(ValueError, match="head and interface say where nodes meet, but nodes is 1"):
        deployment(nodes=1, head="a", interface="eth0")
    with pytest.raises(ValueError, match="port 29502 is where the nodes meet"):
        deployment(port=29502)
    with pytest.raises(ValueError, match="and Ray above them"):
        deployment(port=29700, distributed="ray")
    assert deployment(port=29700).nodes == 2
    for key in ("head", "interface"):
        with pytest.raises(ValueError, match="at least 1 character"):
            deployment(**{key: ""})


def sglang(**changes: Any) -> tuple[str, ...]:
    d = deployment(engine="sglang", master_port=30100, **changes)
    release = load_catalogue().release("sglang", "0.5.6")
    return render(d, release, node=Node(1, "10.0.0.1", 30100, "10.0.0.2", "eth0"))


def test_sglang_meets_at_one_address_and_port() -> None:
    """sglang.srt.server_args of 0.4.6.post5 and 0.5.6: --nnodes, --node-rank, --dist-init-addr HOST:PORT."""
    argv = sglang()
    told = {k: argv[argv.index(k) + 1] for k in ("--nnodes", "--node-rank", "--dist-init-addr")}
    assert told == {"--nnodes": "2", "--node-rank": "1", "--dist-init-addr": "10.0.0.1:30100"}
    assert not {"--headless", "--master-addr", "--master-port"} & set(argv)


def test_what_sglang_can_not_do_over_nodes() -> None:
    with pytest.raises(UsageError, match="takes the ports after master_port"):
        sglang(extra_args=("--enable-dp-attention",))
    with pytest.raises(UsageError, match=r"sglang 0\.5\.6 spans nodes by itself, not through Ray"):
        sglang(distributed="ray")


@pytest.mark.parametrize("distributed", ["auto", "ray"])
def test_one_host_of_several_is_never_changed_alone(distributed: str) -> None:
    """By a bench, by `doctor --fix`: through Ray the engine itself would not have noticed."""
    with pytest.raises(UsageError, match="spans 2 nodes, and this works on one host alone") as e:
        want_for(
            hosts("a")[0], deployment(distributed=distributed), HostFacts("a", 0.0, {}), Sources(), print
        )
    assert "invoke provision --host GROUP" in e.value.hint


def test_the_doctor_mends_no_deployment_of_several_hosts() -> None:
    slug = "spec-context-length-mismatch"
    fix = (Fix("max_model_len", "4096"),)
    cause = Finding(code_of(slug), slug, Severity.ERROR, "t", "c", fix=fix, root=True)

    def remedy(d: Deployment) -> object:
        sight = Sight(HostFacts("a", 0.0, {}))
        return _remedy(
            Diagnosed(hosts("a")[0], Report((cause,), (), ""), 4, sight=sight, deployment=d), cause
        )

    assert remedy(deployment(nodes=1)) is not None
    assert remedy(deployment()) is None
