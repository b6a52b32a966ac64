"""The operator is killed at any point, then resumes; EYAS_KILLS says at how many (a few without it)."""

import os
from collections.abc import Callable
from random import Random
from time import monotonic, sleep

import pytest

from tests.lab.rollout.hubfleet import Fleet
from tests.lab.rollout.running import Run, statuses

pytestmark = pytest.mark.lab
SEED = 20261201
POINTS = range(int(os.environ.get("EYAS_KILLS", "3")))
TWO = "gpu01,gpu02"
#: As a run that is killed while it copies leaves it on a source.
LEFT = 'restrict,expiry-time="20991231000000",command="rrsync -ro /x" ssh-ed25519 AAAA copy-0123456789ab'


def point_of(run: Run, random: Random) -> tuple[str, Callable[[], bool]]:
    """Half of the points by what the journal has told, half by the clock."""
    late = random.uniform(0, 0.7)
    if random.random() < 0.5:
        lines, at = random.randint(1, 16), [0.0]

        def told() -> bool:
            if not at[0] and len(run.journal()) >= lines:
                at[0] = monotonic() + late
            return bool(at[0]) and monotonic() >= at[0]

        return f"{late:.2f} s after line {lines}", told
    end = monotonic() + random.uniform(3, 18)
    return f"after {end - monotonic():.1f} s", lambda: monotonic() >= end


@pytest.mark.parametrize("number", POINTS)
def test_operator_killed_then_resumed(fleet: Fleet, number: int) -> None:
    random = Random(SEED + number)
    old = fleet.served("gpu01", "gpu02")
    assert not [v for v in old.values() if v.startswith("down")], old
    new = f"kill{number}"
    weights = fleet.model(new) if number % 3 == 0 else "target"
    words = ("--serial", "100%", "--canary", random.choice("01"))
    run = fleet.rollout(new, *words, limit=TWO, weights=weights)
    where, point = point_of(run, random)
    killed = run.kill(point)
    events = [e["event"] for e in run.journal()]
    print(f"{number}: {where}: {'killed' if killed else 'had ended'} after {events[-1:]}")
    fleet.settles({new, *old.values()}, "gpu01", "gpu02")
    if "plan" in events and "end" not in events:
        fleet.lab.host("gpu01").run(["sh", "-c", 'echo "$1" >>/home/op/.ssh/authorized_keys', "sh", LEFT])
    code, document, log = fleet.resume()
    if "plan" not in events or "end" in events:
        assert code == 2, log
        code, document, log = fleet.rollout(new, *words, limit=TWO, weights=weights).wait()
    assert code == 0, (where, log)
    assert set(statuses(document).values()) <= {"done", "ok"}, (where, log)
    assert fleet.served("gpu01", "gpu02") == {"gpu01": new, "gpu02": new}
    swept(fleet)


def swept(fleet: Fleet) -> None:
    """No lock, no key, no process of an operator that is gone."""
    end = monotonic() + 15
    script = (
        "ls /var/lib/eyas/lock/[o]wner.json 2>/dev/null; pgrep -a rsync; pgrep -af lock/[o]wner.json; true"
    )
    while left := fleet.keys_left("gpu01", "gpu02") + "".join(
        fleet.lab.host(n).run(["sh", "-c", script]).stdout for n in ("gpu01", "gpu02")
    ):
        assert monotonic() < end, left
        sleep(0.3)
