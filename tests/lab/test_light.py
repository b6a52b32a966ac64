"""Light hosts: real sshd, sudo and Python on a disk of their own, nothing else; one that hangs among them."""

import time
from pathlib import Path

import pytest

from inventory.errors import EyasError, UsageError
from inventory.hosts import load_inventory
from inventory.model import Host
from provision.fleet import each_host
from provision.observe import probe
from provision.ssh import SshOptions, connect
from tests.lab.conftest import MakeLab
from tests.lab.hosts import Lab

pytestmark = pytest.mark.lab
NAMES = [f"gpu{n}" for n in range(1, 7)]
OPTIONS = SshOptions(connect_timeout=1)


@pytest.fixture(scope="module")
def light(make_lab: MakeLab) -> Lab:
    return make_lab(NAMES, light=True)


def _look(host: Host) -> tuple[str, float]:
    began = time.monotonic()
    try:
        with connect(host, OPTIONS) as shell:
            said = str(probe(shell).value("os.hostname", str))
    except EyasError as e:
        said = f"{type(e).__name__}: {e.message}"
    return said, time.monotonic() - began


def test_each_is_a_host_of_its_own(light: Lab) -> None:
    for name in NAMES[:2]:
        done = light.host(name).ssh(["sudo", "sh", "-c", "'hostname; cat /marker; echo $0 >/marker'"])
        assert (done.stdout, "No such file" in done.stderr) == (f"{name}\n", True)
    assert not Path("/marker").exists()
    with pytest.raises(UsageError):
        light.host(NAMES[0]).reboot()


def test_a_hanging_host_costs_its_own_time_out_only(light: Lab) -> None:
    hosts = list(load_inventory(light.inventory).select("all"))
    light.fault("gpu2", "frozen")
    try:
        began = time.monotonic()
        found = dict(zip((h.name for h in hosts), each_host(hosts, _look, forks=2), strict=True))
        whole = time.monotonic() - began
    finally:
        light.heal("gpu2")
    said, waited = found.pop("gpu2")
    assert said.startswith("HostUnreachable: no SSH connection")
    assert sorted(s for s, _ in found.values()) == sorted(found)
    others = sum(s for _, s in found.values())
    assert whole < max(waited, others) + 2, "the others waited for it, or were started one by one"
    assert light.host("gpu2").greets()
