"""Light hosts: real sshd, sudo and Python on a disk of their own, nothing else; one that hangs among them."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inventory.errors import EyasError, LockHeld, UsageError
from inventory.hosts import load_inventory
from inventory.model import Host
from provision.converge import Options as ConvergeOptions
from provision.fleet import each_host
from provision.observe import probe
from provision.rollout.crew import HostCrew
from provision.rollout.gate import Verdict
from provision.rollout.loop import Rollout
from provision.rollout.plan import Member, Options, Plan, host_words
from provision.rollout.record import Record
from provision.ssh import SshOptions, connect
from tests.lab.conftest import MakeLab
from tests.lab.hosts import SUDO_PASSWORD, Lab
from tests.lab.net import Network

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


def test_a_lab_removed_again_leaves_alone_who_has_its_number_now(make_lab: MakeLab) -> None:
    gone = make_lab(["gpu1"], light=True)
    gone.down()
    after = make_lab(["gpu1"], light=True)
    gone.network = Network(gone.name, after.index)  # the same number, also where others took one between
    gone.down()
    assert after.host("gpu1").greets()
    after.down()


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
    assert waited >= OPTIONS.connect_timeout
    others = sum(s for _, s in found.values())
    assert whole < max(waited, others) + 2, "the others waited for it, or were started one by one"
    assert light.host("gpu2").greets()


def _behind(light: Lab, relay: str) -> list[Host]:
    """The other hosts as a site sees them from outside: only through its relay."""
    words = f"-F {light.home / 'ssh_config'} -J {relay}"
    hosts = [h for h in load_inventory(light.inventory).select("all") if h.name != relay]
    return [h.model_copy(update={"vars": {**h.vars, "ansible_ssh_common_args": words}}) for h in hosts]


def test_a_site_behind_a_relay_costs_it_one_connection(light: Lab) -> None:
    options = SshOptions(connect_timeout=5)
    with contextlib.ExitStack() as stack:
        shells = each_host(_behind(light, "gpu1"), lambda h: connect(h, options), forks=5)
        for s in shells:
            stack.callback(s.close)
        told = {s.run(("hostname",), timeout=20).stdout.strip() for s in shells}
        found = light.host("gpu1").run(["pgrep", "-fc", r"^sshd: op \[priv\]"], check=False)
    assert told == set(NAMES[1:])
    assert found.stdout.strip() == "1"


def test_a_relay_that_hangs_is_waited_for_once(light: Lab) -> None:
    light.fault("gpu1", "frozen")
    began = time.monotonic()
    try:
        with pytest.raises(AssertionError):
            each_host(_behind(light, "gpu1"), _connect_only, forks=5)
    finally:
        light.heal("gpu1")
    assert time.monotonic() - began < 4 * (OPTIONS.connect_timeout + 5)


def _connect_only(host: Host) -> None:
    try:
        connect(host, OPTIONS).close()
    except EyasError as e:
        raise AssertionError(e.message) from e


class _Crew(HostCrew):
    """Real connections and locks; the hosts have nothing to serve."""

    def spread(self, members: list[Member], fleet: list[Member]) -> None: ...
    def prepare(self, member: Member, *, until_weights: bool = False) -> None: ...
    def ready(self, member: Member) -> None:
        self.take(member.as_host())

    def serve(self, member: Member, release: str, *, on_line: Callable[[str], None] | None = None) -> None:
        with self.at(member) as shell:
            shell.write("/var/lib/eyas/served", release.encode())

    def gate(self, member: Member, release: str, baseline: str | None) -> Verdict:
        return Verdict()


def _crew(what: str) -> _Crew:
    reach = functools.partial(connect, options=SshOptions())
    return _Crew(reach, what, Options(), ConvergeOptions(), lambda *_: None)


def test_operators_by_group_keep_their_own_journal_and_the_hosts_keep_them_apart(
    light: Lab, tmp_path: Path
) -> None:
    """Each operator's machine has its own journal and fleet lock; a host has one lock for all of them."""
    direct = list(load_inventory(light.inventory).select("gpu[4:6]"))
    groups = {"north": _behind(light, "gpu1")[:2], "south": direct}
    together = threading.Barrier(2)

    def operate(name: str) -> Record:
        members = [Member(host_words(h), {"name": "x"}, "pending", want=name) for h in groups[name]]
        record = Record.new(Plan(name, "rollout", "fleet", tuple(members)), tmp_path / name)
        with _crew(name) as crew:
            for m in members:
                crew.take(m.as_host())
            together.wait(20)
            with pytest.raises(LockHeld, match=name), _crew("a third") as other:
                other.take(members[0].as_host())
            assert Rollout(record, crew, lambda *_: None).run().exit_code == 0
        return Record(record.path)

    found = dict(zip(groups, _side_by_side(operate, groups), strict=True))
    for name, hosts in groups.items():
        assert found[name].finished
        assert found[name].phases == {h.name: "done" for h in hosts}
        for h in hosts:
            assert light.host(h.name).run(["cat", "/var/lib/eyas/served"]).stdout.strip() == name
    with _crew("afterwards") as crew:
        crew.take(groups["north"][0])


def _side_by_side(work: Callable[[str], Record], names: Iterable[str]) -> list[Record]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, names))


SUDOERS = {
    "all without": "op ALL=(ALL:ALL) NOPASSWD: ALL\n",
    "some without": "op ALL=(ALL:ALL) ALL\nop ALL=(ALL:ALL) NOPASSWD: /usr/bin/timeout\n",
    "all with": "op ALL=(ALL:ALL) ALL\n",
}


@pytest.mark.parametrize("sudo", SUDOERS)
def test_a_command_that_fails_under_sudo_runs_once_and_keeps_its_code(light: Lab, sudo: str) -> None:
    asked: list[str] = []

    def ask() -> str:
        asked.append("?")
        return SUDO_PASSWORD

    options = SshOptions(ask_sudo=ask)
    host = next(iter(load_inventory(light.inventory).select("gpu3")))
    light.host("gpu3").write("/etc/sudoers.d/eyas-lab", SUDOERS[sudo], mode=0o440)
    try:
        with connect(host, options) as shell:
            script = "echo ran >>/root/runs; cat >>/root/runs; exit 1"
            got = shell.run(("sh", "-c", script), timeout=20, stdin=b"input\n", check=False)
            assert got.exit == 1
            assert light.host("gpu3").run(["cat", "/root/runs"]).stdout == "ran\ninput\n"
    finally:
        light.host("gpu3").write("/etc/sudoers.d/eyas-lab", SUDOERS["all without"], mode=0o440)
        light.host("gpu3").run(["rm", "-f", "/root/runs"])
    assert asked == (["?"] if sudo == "all with" else [])
