"""Which network the hosts of a group use: found, chosen, or refused with the choices named."""

from typing import Any

import pytest

from checks.facts import HostFacts
from checks.nodes.alike import compare
from checks.nodes.fabric import seats
from inventory.errors import CheckRefused
from inventory.model import Deployment, ModelRef

D = Deployment(
    name="big", engine="vllm", target=ModelRef(repo="o/m"), tensor_parallel=2, nodes=2, master_port=30000
)


def port(name: str, address: str | None, speed: int | None = None, **words: Any) -> dict[str, Any]:
    base = {"state": "up", "mtu": 1500, "speed_mbit": speed, "netmask": "255.255.255.0"}
    return {"name": name, "address": address, **base, **words}


def facts(host: str, *ports: dict[str, Any], **tree: Any) -> HostFacts:
    return HostFacts(host, 1000.0, {"network": {"interfaces": list(ports)}, **tree})


LO = port("lo", "127.0.0.1", state="unknown", netmask="255.0.0.0")
DOCKER = port("docker0", "172.17.0.1", netmask="255.255.0.0")


def choose(*hosts: HostFacts, **wishes: str) -> list[tuple[str, str]]:
    seating = seats(D, {f.host: wishes.get(f.host) for f in hosts}, hosts)
    assert {s.node.head_address for s in seating} == {seating[0].node.address}
    assert [s.node.rank for s in seating] == list(range(len(hosts)))
    assert {s.node.port for s in seating} == {30000}
    return [(s.node.interface, s.node.address) for s in seating]


def test_the_one_shared_network_is_taken_whatever_its_names() -> None:
    a = facts("a", LO, DOCKER, port("eno1", "10.0.0.1"), port("ib0", "10.9.0.1"))
    b = facts("b", LO, DOCKER, port("eth7", "10.0.0.2"), port("ib0", "10.8.0.1"))
    assert choose(a, b) == [("eno1", "10.0.0.1"), ("eth7", "10.0.0.2")]


def test_the_fastest_of_several_counts_by_its_slowest_end() -> None:
    a = facts("a", port("slow", "10.0.0.1", 10_000), port("fast", "10.1.0.1", 400_000))
    b = facts("b", port("slow", "10.0.0.2", 100_000), port("fast", "10.1.0.2", 25_000))
    assert choose(a, b) == [("fast", "10.1.0.1"), ("fast", "10.1.0.2")]


@pytest.mark.parametrize("speed", [None, 1000])
def test_equal_or_unknown_speeds_are_the_operators_choice(speed: int | None) -> None:
    a = facts("a", port("one", "10.0.0.1", speed), port("two", "10.1.0.1", speed))
    b = facts("b", port("one", "10.0.0.2", speed), port("two", "10.1.0.2", speed))
    with pytest.raises(CheckRefused, match=r"10\.0\.0\.0/24 .*10\.1\.0\.0/24") as refused:
        choose(a, b)
    assert "interface: one" in refused.value.hint
    assert choose(a, b, a="two", b="two") == [("two", "10.1.0.1"), ("two", "10.1.0.2")]


def test_what_is_down_inside_or_the_same_everywhere_is_no_network() -> None:
    nat = port("eth0", "10.0.2.15")
    a = facts("a", LO, DOCKER, nat, port("eth1", "10.5.0.1", state="down"))
    b = facts("b", LO, DOCKER, nat, port("eth1", "10.5.0.2"))
    with pytest.raises(CheckRefused, match=r"share no network .*a: eth0 10\.0\.2\.15/24; b: "):
        choose(a, b)


def test_a_wish_that_one_host_cannot_grant_names_what_it_has() -> None:
    a, b = facts("a", port("eth0", "10.0.0.1")), facts("b", port("eth9", "10.0.0.2"))
    with pytest.raises(CheckRefused, match="interface eth0 has no IPv4 address") as refused:
        choose(a, b, a="eth0", b="eth0")
    assert refused.value.host == "b"
    assert "eth9 10.0.0.2" in refused.value.hint
    with pytest.raises(CheckRefused, match=r"interface \(none named\)"):
        choose(a, b, a="eth0")


def test_nobody_could_look_is_no_choice() -> None:
    with pytest.raises(CheckRefused, match="nobody could look at the network interfaces: no answer") as e:
        choose(facts("a", port("e", "10.0.0.1")), HostFacts("b", 0.0, {"network": {"missing": "no answer"}}))
    assert e.value.host == "b"


MEMBERS = [{"host": "a", "interface": "eth0"}, {"host": "b", "interface": "eth0"}]


def test_hosts_that_differ_are_told_apart() -> None:
    h200, l4 = [{"name": "NVIDIA H200"}], [{"name": "NVIDIA L4"}]
    a = facts("a", port("eth0", "10.0.0.1", mtu=9000), gpus=h200, os={"time": 1000.0})
    b = facts("b", port("eth0", "10.0.0.2"), gpus=l4, os={"time": 1060.0})
    assert [(f.slug, f.host) for f in compare([a, b], MEMBERS)] == [
        ("ranks-differ", "b"),
        ("ranks-differ", "b"),
        ("clock-skew", "b"),
    ]
    assert compare([a, facts("b", port("eth0", "10.0.0.2", mtu=9000), gpus=h200)], MEMBERS) == []


def serving(release: str, weights: str = "w1", **more: Any) -> dict[str, Any]:
    told = {
        "id": release,
        "engine_version": "0.33.0",
        "lock": {"id": "l1"},
        "weights": {"target": {"path": weights}},
    }
    return {"eyas": {"current": {"big": release}, "releases": [{**told, **more}]}}


def test_ranks_that_serve_different_things_are_told_with_what_differs() -> None:
    a = facts("a", **serving("r1"))
    assert compare([a, facts("b", **serving("r1"))], MEMBERS, "big") == []
    (other,) = compare([a, facts("b", **serving("r2", "w2"))], MEMBERS, "big")
    assert (other.slug, other.host, other.severity.value) == ("ranks-differ", "b", "error")
    assert "release r2 here, r1 on a; target weights w2 here, w1 on a" in other.cause
    (lock,) = compare([a, facts("b", **serving("r1", lock={"id": "l2"}))], MEMBERS, "big")
    assert "wheel lock l2 here, l1 on a" in lock.cause
    (none,) = compare([a, facts("b", eyas={"current": {}, "releases": []})], MEMBERS, "big")
    assert "release none here, r1 on a" in none.cause
    assert compare([a, facts("b", eyas={"missing": "no answer"})], MEMBERS, "big") == []
    assert compare([a, facts("b", **serving("r2"))], MEMBERS) == [], "about to be switched"


def test_one_machine_under_two_names_is_no_group() -> None:
    a, b = facts("a", LO, port("eth0", "10.0.0.1")), facts("b", LO, port("eth0", "10.0.0.1"))
    for wishes in ({}, {"a": "eth0", "b": "eth0"}, {"a": "lo", "b": "lo"}):
        with pytest.raises(CheckRefused, match="a and b have the same address"):
            choose(a, b, **wishes)


def test_a_host_without_ipv4_is_named() -> None:
    a = facts("a", LO, port("eth0", "10.0.0.1"))
    for b in (
        facts("b", LO, port("eth0", None, netmask=None)),
        facts("b", LO, DOCKER, port("usb0", "169.254.3.1", netmask="255.255.0.0")),
        facts("b", port("eth0", "10.0.0.2", netmask="255.0.255.0")),
        facts("b"),
    ):
        with pytest.raises(
            CheckRefused, match=r"no IPv4 address on an interface .*: b; hosts of a group"
        ) as e:
            choose(a, b)
        assert e.value.host == "b"


def test_addresses_that_hosts_gave_themselves_are_no_shared_network() -> None:
    own = "255.255.0.0"
    a = facts("a", port("usb0", "169.254.3.1", netmask=own), port("eth0", "10.0.0.1"))
    b = facts("b", port("usb0", "169.254.3.2", netmask=own), port("eth0", "10.0.0.2"))
    assert choose(a, b) == [("eth0", "10.0.0.1"), ("eth0", "10.0.0.2")]
