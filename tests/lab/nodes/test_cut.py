"""A switch of two hosts that is cut off: the operator is killed (at EYAS_KILLS points each), a host dies."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from tests.lab.nodes.group import HOSTS, GroupFleet
from tests.lab.packages import offer
from tests.lab.rollout.fleet import LOOSE, ROOT
from tests.lab.rollout.running import Run

pytestmark = pytest.mark.lab
SEED = 20261201
POINTS = range(int(os.environ.get("EYAS_KILLS", "1")))
SWITCH = re.compile(r" serv(?:e|ing) release ")


@pytest.fixture(scope="module", autouse=True)
def _served(group: GroupFleet) -> None:
    group.settings("one")
    code, document, log = group.provision("one")
    assert code == 0, log + json.dumps(document)


def after(run: Run, seconds: float) -> Callable[[], bool]:
    """So long after the log has said that the switch begins."""
    at = [0.0]

    def true() -> bool:
        if not at[0] and SWITCH.search(run.log.read_text()):
            at[0] = monotonic() + seconds
        return bool(at[0]) and monotonic() >= at[0]

    return true


def killed(group: GroupFleet, run: Run, seconds: float) -> None:
    """In the middle of the switch; then the hosts are left to themselves, or not."""
    alive = run.kill(after(run, seconds))
    end = "killed" if alive else "had ended"
    print(f"{seconds:.2f} s after the switch began: {end}; {group.states()}\n{run.log.read_text()[-300:]}")


def version(group: GroupFleet) -> str:
    """What both serve."""
    (one,) = set(group.served().values())
    return one


@pytest.mark.parametrize("number", POINTS)
def test_the_operator_of_a_provision_is_killed(group: GroupFleet, number: int) -> None:
    random, old, new = Random(SEED + number), version(group), f"p{number}"
    group.settings(new, start_s=1)
    words = ("--host", ",".join(HOSTS), "--no-preflight")
    killed(group, group.begin("provision", new, *words), random.uniform(0, 5))
    if number % 2:
        group.until(lambda: group.serves(old) or group.serves(new), within=120, what="one of both serves")
    code, document, log = group.provision(new)
    assert code == 0, log + json.dumps(document)
    assert group.serves(new)


@pytest.mark.parametrize("number", POINTS)
def test_the_operator_of_a_rollout_is_killed(group: GroupFleet, number: int) -> None:
    random, new = Random(SEED - number), f"r{number}"
    group.settings(new, start_s=1)
    killed(
        group,
        group.begin("rollout", new, "--limit", "gpu", "--yes", *LOOSE),
        random.uniform(0, 5),
    )
    got = group.run("rollout", "--resume", "--yes", "--json")
    assert got.returncode == 0, got.stdout + got.stderr
    assert group.serves(new)


def switched_alone(group: GroupFleet, name: str, release: str, former: str) -> "subprocess.Popen[str]":
    """What a host does whose operator is gone before the other one was told anything."""
    script = (ROOT / "systemd/activate.sh").read_text()
    folder = "/var/lib/eyas/releases"
    words = (
        f"{folder}/{release}",
        "/var/lib/eyas/current/fl",
        "eyas-fl",
        f"{folder}/{former}" if former else "",
    )
    return group.lab.host(name).popen(["sh", "-c", script, "sh", *words])


def releases(group: GroupFleet) -> dict[str, str]:
    """Version -> id of the releases that are on the hosts."""
    found = group.sh(
        "cd /var/lib/eyas/releases; grep -o '/etc/eyas-lab/[^.]*.fault' */release.json", HOSTS[0]
    )
    return {Path(line).stem: line.split("/")[0] for line in found.splitlines()}


def test_one_host_alone_was_switched(group: GroupFleet) -> None:
    """To a release that serves: the next run brings the other one too. To one that fails: both go back."""
    old, known = version(group), releases(group)
    other = next(v for v in known if v != old)
    with switched_alone(group, HOSTS[1], known[other], known[old]):
        group.gone(within=20)
        code, document, log = group.provision(other)
    assert code == 0, log + json.dumps(document)
    assert group.serves(other)
    group.fault(HOSTS[0], old, fault="oom-kv")
    link = f"ln -sfn /var/lib/eyas/releases/{known[old]} /var/lib/eyas/current/fl"
    group.sh(f"{link} && systemctl restart --no-block eyas-fl", HOSTS[1])
    code, document, log = group.provision(old)
    assert code == 6, log + json.dumps(document)
    assert group.serves(other)
    group.settings(old)


def test_a_host_that_dies_in_the_switch_is_not_waited_for(group: GroupFleet) -> None:
    old = version(group)
    group.settings("dark", start_s=20)
    run = group.begin("provision", "dark", "--host", ",".join(HOSTS), "--no-preflight")
    try:
        run.meanwhile({"serve release": lambda: group.lab.fault(HOSTS[1], "power-off")})
        code, document, log = run.wait(timeout=10)
        assert code == 6, log + json.dumps(document)
        first, second = document["hosts"]
        assert (first["status"], second["status"]) == ("rolled-back", "unreachable"), document
        assert f"the group lost {HOSTS[1]} in the switch" in first["error"]
        assert "back in place and serves as soon as" in first["error"]
        assert f"{HOSTS[1]} is gone: not waiting for it" in log
        assert max(h["seconds"] for h in document["hosts"]) < 90
        assert group.link(HOSTS[0]) == old
    finally:
        group.lab.heal(HOSTS[1])
    code, document, log = group.provision(old)
    assert code == 0, log + json.dumps(document)
    assert group.serves(old)


def test_iperf3_measures_what_the_link_carries(group: GroupFleet) -> None:
    for name in HOSTS:
        offer(group.lab, name, "iperf3")
        group.sh("apt-get -q update && apt-get -q install -y iperf3", name)
        group.lab.fault(name, "rate", "100")
    try:
        told = ("--host", ",".join(HOSTS), "--measure-network", "--check")
        code, document, log = group.begin("provision", "fast", *told).wait(timeout=90)
    finally:
        for name in HOSTS:
            group.lab.heal(name)
    assert code == 4, log  # the stand-in's head is none, which its weights' headers tell
    (note,) = [n for n in document["hosts"][0]["notes"] if n.startswith(f"iperf3 {HOSTS[1]} to {HOSTS[0]}: ")]
    (warning,) = [f for f in document["hosts"][0]["findings"] if f["slug"] == "tp-over-network"]
    assert 75 < float(note.split()[-2]) <= 100
    assert f"on the wire at {note.split(': ')[1]}" in warning["cause"]
