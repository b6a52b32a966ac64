"""What goes wrong while a fleet is switched: a fault a host, all in one rollout, and nothing is lost.

After each: every host serves its old release or its new one, and the journal tells which.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.hosts import Lab
from tests.lab.rollout.hubfleet import HUB_MODEL, Fleet
from tests.lab.rollout.running import Run, statuses

pytestmark = pytest.mark.lab
TOGETHER = ("--serial", "100%", "--canary", "0")


def version(fleet: Fleet) -> str:
    """A name no release has had."""
    return f"v{fleet.runs}"


def told(run: Run) -> dict[str, str]:
    """Where the journal says each host is."""
    ends = {"done", "rolled-back", "failed", "kept", "switching", "rolling-back", "draining"}
    return {e["host"]: e["event"] for e in run.journal() if "host" in e and e["event"] in ends}


def both(*acts: Callable[[], object]) -> Callable[[], object]:
    def act() -> None:
        for one in acts:
            one()

    return act


def test_faults_in_the_switch(fleet: Fleet) -> None:
    """A reboot, a pulled cable, a dead sshd, a hang; and somebody edits inventory and deployment."""
    new = version(fleet)

    def edit() -> None:
        fleet.write_inventory(gpu02={"ansible_host": "192.0.2.1"}, gpu03={"ansible_user": "nobody"})
        fleet.deployment(new).write_text("engine: nonsense\n")

    run = fleet.rollout(new, *TOGETHER, engines={n: {"start_s": 2} for n in fleet.names})
    try:
        run.meanwhile(
            {
                "begin": edit,
                "switching gpu01": lambda: fleet.lab.host("gpu01").reboot(wait=False),
                "switching gpu02": fleet.cut("gpu02", 8),
                "switching gpu03": both(
                    lambda: fleet.lab.fault("gpu03", "sshd-stopped"),
                    lambda: fleet.lab.fault("gpu03", "sessions-killed"),
                    lambda: time.sleep(4),
                    lambda: fleet.lab.heal("gpu03"),
                ),
                "switching gpu04": fleet.cut("gpu04", 5, "frozen"),
            }
        )
    finally:
        fleet.write_inventory()
    code, document, log = run.wait()
    assert code == 0, log
    assert statuses(document) == dict.fromkeys(fleet.names, "done") == told(run)
    assert fleet.served() == dict.fromkeys(fleet.names, new)
    assert log.count("lost:") >= 3


def test_faults_in_the_gate(fleet: Fleet) -> None:
    """It serves the new release already, and nobody has looked at it yet."""
    new = version(fleet)
    slow = {n: {"tokens_per_s": 60} for n in fleet.names}
    run = fleet.rollout(new, *TOGETHER, engines=slow).meanwhile(
        {
            "gpu01 proof": lambda: fleet.lab.host("gpu01").reboot(wait=False),
            "gpu02 proof": fleet.cut("gpu02", 8),
            "gpu03 proof": lambda: fleet.lab.fault("gpu03", "sessions-killed"),
        }
    )
    code, document, log = run.wait()
    found = statuses(document)
    assert {found[n] for n in fleet.names[1:]} == {"done"}, log
    # An engine that a reboot ends under the proof is a red gate.
    assert (code, found["gpu01"]) in {(0, "done"), (6, "rolled-back")}, log
    assert found == told(run)
    old = fleet.served("gpu01")["gpu01"]
    assert fleet.served() == {**dict.fromkeys(fleet.names, new), "gpu01": old}
    assert (old == new) is (code == 0)
    assert not old.startswith("down")


def test_a_host_that_stays_away_is_settled_by_resume(fleet: Fleet) -> None:
    """Its plug is pulled in the switch; the others go on; it is told as lost, and finished later."""
    new = version(fleet)
    words = ("--serial", "100%", "--canary", "0", "--max-fail", "2", "--back-timeout", "3")
    run = fleet.rollout(new, *words).meanwhile(
        {"switching gpu02": lambda: fleet.lab.fault("gpu02", "power-off") and None}
    )
    code, document, log = run.wait()
    assert (code, statuses(document)["gpu02"]) == (5, "lost"), log
    assert told(run) == {**dict.fromkeys(fleet.names, "done"), "gpu02": "switching"}
    fleet.lab.heal("gpu02")
    code, document, log = fleet.resume()
    assert code == 0, log
    assert statuses(document) == dict.fromkeys(fleet.names, "done")
    assert fleet.served() == dict.fromkeys(fleet.names, new)


def damage(fleet: Fleet, host: str, weights: str) -> None:
    """One byte of the weights, as a bad disk would: size and time stay."""
    script = (
        'f=$(ls -d /var/lib/eyas/weights/*"$0"*/*/model.safetensors); t=$(stat -c %y "$f"); '
        'printf X | dd of="$f" bs=1 seek=5000 conv=notrunc status=none; touch -d "$t" "$f"'
    )
    fleet.lab.host(host).run(["sh", "-c", script, weights])


def forget(fleet: Fleet, weights: str, *hosts: str) -> None:
    for name in hosts:
        fleet.lab.host(name).run(["sh", "-c", f"rm -rf /var/lib/eyas/weights/*{weights}*"])


def skew(folder: Path, ahead: int) -> dict[str, str]:
    """An environment in which the operator's Python runs some seconds ahead, in another time zone."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import time\nahead = {ahead}\n"
        "now, strftime, localtime = time.time, time.strftime, time.localtime\n"
        "time.time = lambda: now() + ahead\n"
        "time.localtime = lambda s=None: localtime(time.time() if s is None else s)\n"
        "time.strftime = lambda f, t=None: strftime(f, t or time.localtime())\n"
    )
    return {"PYTHONPATH": str(folder), "TZ": "Asia/Tokyo"}


def test_a_corrupted_copy_is_fetched_again_whatever_the_clocks_say(fleet: Fleet, tmp_path: Path) -> None:
    """Two hosts get a model from the hub and one's copy rots; the others end with right ones."""
    weights, old, new = fleet.model("rotten", HUB_MODEL), version(fleet), f"{version(fleet)}b"
    code, _, log = fleet.rollout(old, *TOGETHER, limit="gpu01,gpu04", weights=weights).wait()
    assert code == 0, log
    damage(fleet, "gpu01", weights)
    sent = fleet.hub.sent(f"{weights}/.*safetensors")
    hours = skew(tmp_path / "hours", 7 * 3600)
    code, _, log = fleet.rollout(new, *TOGETHER, weights=weights, env=hours).wait()
    assert code == 4, log
    assert "the host's clock is 25" in log
    minutes = skew(tmp_path / "minutes", 280)
    code, document, log = fleet.rollout(new, *TOGETHER, weights=weights, env=minutes).wait()
    assert code == 0, log
    assert statuses(document) == dict.fromkeys(fleet.names, "done")
    assert "from gpu01: " in log
    assert "copied to 2 hosts" in log
    assert fleet.hub.sent(f"{weights}/.*safetensors") == sent
    deep = fleet.run("drift", "--limit", "gpu02,gpu03", "--deep", "--detailed-exitcode")
    assert deep[0] == 0, deep
    assert fleet.served() == dict.fromkeys(fleet.names, new)
    assert fleet.keys_left() == ""


def test_a_source_that_dies_is_replaced_and_a_killed_operator_leaves_no_key(fleet: Fleet) -> None:
    """Copies over slow links: the operator is killed in the first, a source's sessions in the second."""
    weights, old, new = fleet.model("slow", HUB_MODEL), version(fleet), f"{version(fleet)}b"
    code, _, log = fleet.rollout(old, *TOGETHER, limit="gpu01,gpu04", weights=weights).wait()
    assert code == 0, log
    sent = fleet.hub.sent(f"{weights}/.*safetensors")
    with fleet.broken("gpu02", "rate", "6"), fleet.broken("gpu03", "rate", "6"):
        run = fleet.rollout(new, *TOGETHER, weights=weights)
        assert run.kill(lambda: "gpu02 eyas-lab/slow: copying from" in run.log.read_text())
        assert fleet.served("gpu02", "gpu03").keys() == {"gpu02", "gpu03"}
        lines = fleet.keys_left()
        assert " copy-" in lines
        assert_soon_gone(fleet)
        source = "gpu01"
        run = fleet.start("rollout", "--resume", "--json")
        run.meanwhile({f"copying from {source}": lambda: fleet.lab.fault(source, "sessions-killed") and None})
        code, document, log = run.wait()
    assert code == 0, log
    assert statuses(document) == dict.fromkeys(fleet.names, "done")
    assert fleet.served() == dict.fromkeys(fleet.names, new)
    assert fleet.hub.sent(f"{weights}/.*safetensors") == sent
    assert fleet.keys_left() == ""


def assert_soon_gone(fleet: Fleet) -> None:
    """Each line holds for minutes, and the host itself takes it away: here its time is brought forward."""
    lines = 'sed -n "s/.*expiry-time=.\\([0-9]*\\).* copy-.*/\\1/p" /home/*/.ssh/authorized_keys'
    age = "sed -i 's/expiry-time=\"2[0-9]*/expiry-time=\"20200101000000/' /home/*/.ssh/authorized_keys"
    for host in (fleet.lab.host(name) for name in fleet.names):
        for until in host.run(["sh", "-c", lines], check=False).stdout.split():
            now, later = (
                host.run(["date", "-d", f"+{s} seconds", "+%Y%m%d%H%M%S"]).stdout.strip() for s in (0, 200)
            )
            assert now < until < later
            argv = ["systemctl", "list-units", "--plain", "--no-legend", "--all", "run-*.timer"]
            units = host.run(argv).stdout.splitlines()
            timers = [line.split()[0] for line in units if "key of a copy between" in line]
            assert timers
            host.run(["sh", "-c", age])
            host.run(["systemctl", "start", timers[0].replace(".timer", ".service")])
    end = time.monotonic() + 20
    while left := fleet.keys_left():
        assert time.monotonic() < end, left
        time.sleep(0.2)


def test_a_cable_pulled_while_copying_and_while_preparing(fleet: Fleet) -> None:
    """The hosts that were cut off get a second turn at the end."""
    weights, new = fleet.model("pulled", HUB_MODEL), version(fleet)
    with fleet.broken("gpu02", "rate", "8"):
        run = fleet.rollout(new, *TOGETHER, weights=weights).meanwhile(
            {
                "change gpu01": fleet.cut("gpu03", 8),
                "gpu02 eyas-lab/pulled: copying from": fleet.cut("gpu02", 8),
            }
        )
        code, document, log = run.wait()
    assert code == 0, log
    assert statuses(document) == dict.fromkeys(fleet.names, "done")
    assert fleet.served() == dict.fromkeys(fleet.names, new)
    one_model = (fleet.home / f"models/eyas-lab/{weights}/model.safetensors").stat().st_size
    assert fleet.hub.sent(f"{weights}/.*safetensors") == one_model


def test_a_disk_that_fills_up(fleet: Fleet) -> None:
    """In the switch, before it and while preparing, on a host with a small disk."""
    Lab.up(["gpu05"], name=fleet.lab.name, yes=True, profile="rtx4090x1", size=1700 << 20)
    fleet.lab = Lab.load(fleet.lab.name)
    fleet.write_inventory()
    push: dict[str, Any] = {"limit": "gpu05", "wheels_from": "push"}
    try:
        old, new = version(fleet), f"{version(fleet)}b"
        code, _, log = fleet.rollout(old, **push).wait()
        assert code == 0, log
        for event in ("switching", "batch", "begin"):
            run = fleet.rollout(new, **push, engines={"gpu05": {"start_s": 1}})
            words = f"{event} gpu05" if event == "switching" else event
            code, document, log = run.meanwhile(
                {words: lambda: fleet.lab.fault("gpu05", "disk-full") and None}
            ).wait()
            served = fleet.settles({old, new}, "gpu05")
            fleet.lab.heal("gpu05")
            status = statuses(document)["gpu05"]
            assert status in {"done", "rolled-back", "failed"}, log
            # No room for the proof, and none for the way back: the new release serves on, and that is said.
            stuck = status == "failed" and "could not be put back" in json.dumps(document)
            assert served == {"gpu05": new if status == "done" or stuck else old}, log
            assert told(run).get("gpu05", "failed") == status
            if served == {"gpu05": new}:
                code, _, log = fleet.rollout(old, **push).wait()
                assert code == 0, log
    finally:
        fleet.lab.host("gpu05").remove()
        del fleet.lab.hosts["gpu05"]
        fleet.lab.save()
        fleet.lab.write_access()
        fleet.write_inventory()
