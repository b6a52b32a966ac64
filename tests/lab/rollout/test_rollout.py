"""Rollouts of real hosts, in the order of a fleet's life; each test says what every host serves after it."""

import json

import pytest

from tests.lab.rollout.fleet import Fleet

pytestmark = pytest.mark.lab


def statuses(document: dict[str, object]) -> dict[str, str]:
    hosts = document["hosts"]
    assert isinstance(hosts, list)
    return {h["host"]: h["status"] for h in hosts}


def test_good_rollout_of_four_hosts(fleet: Fleet) -> None:
    code, document, log = fleet.rollout("one", "--serial", "100%")
    assert code == 0, log
    assert statuses(document) == dict.fromkeys(fleet.names, "done")
    assert fleet.served() == dict.fromkeys(fleet.names, "one")
    again = fleet.rollout("one")
    assert (again[0], statuses(again[1])) == (0, dict.fromkeys(fleet.names, "ok"))


def test_canary_with_half_the_acceptance_goes_back(fleet: Fleet) -> None:
    fleet.fault("gpu01", "half", acceptance=0.35)
    code, document, log = fleet.rollout("half")
    assert code == 6, log
    assert statuses(document) == {"gpu01": "rolled-back", **dict.fromkeys(fleet.names[1:], "untouched")}
    assert "accepted" in str(document["hosts"])
    assert fleet.served() == dict.fromkeys(fleet.names, "one")


def test_canary_that_hangs_on_completions_goes_back(fleet: Fleet) -> None:
    """It answers /health and even the first completion, so it becomes ready."""
    fleet.fault("gpu01", "hang", fault="hang", after_requests=1)
    code, document, log = fleet.rollout("hang")
    assert code == 6, log
    assert "deep health" in str(document["hosts"])
    assert fleet.served() == dict.fromkeys(fleet.names, "one")


@pytest.mark.parametrize(
    ("event", "version"), [("switching", "two"), ("done", "three"), ("rolling-back", "bad")]
)
def test_operator_killed_then_resumed(fleet: Fleet, event: str, version: str) -> None:
    former = set(fleet.served().values())
    assert len(former) == 1
    if version == "bad":
        fleet.fault("gpu01", "bad", acceptance=0.1)
    file = str(fleet.deployment(version))
    words = ("--limit", "gpu", "--deployment", file, "--yes", "--json", "--serial", "100%")
    loose = ("--ttft-tolerance", "5000", "--speed-tolerance", "95")
    fleet.kill_when(fleet.start("rollout", *words, *loose), event)
    if event != "done":
        refused = fleet.run("rollout", *words)
        assert refused.returncode == 4, refused.stderr
        assert "--resume" in refused.stderr
    fleet.deployment(version).write_text("engine: nonsense\n")  # the plan was made before this edit
    got = fleet.run("rollout", "--resume", "--json")
    document = json.loads(got.stdout)
    if version == "bad":
        assert (got.returncode, statuses(document)["gpu01"]) == (6, "rolled-back"), got.stderr
        assert set(fleet.served().values()) == former
    else:
        assert got.returncode == 0, got.stderr
        assert set(fleet.served().values()) == {version}


def test_unreachable_host_is_told_and_not_counted_as_done(fleet: Fleet) -> None:
    fleet.lab.fault("gpu04", "link-down")
    try:
        code, document, log = fleet.rollout("four", "--serial", "100%")
    finally:
        fleet.lab.heal("gpu04")
    assert code == 3, log
    assert statuses(document) == {**dict.fromkeys(fleet.names[:3], "done"), "gpu04": "unreachable"}
    assert fleet.served() == {**dict.fromkeys(fleet.names[:3], "four"), "gpu04": "three"}


def test_two_operators_at_once(fleet: Fleet) -> None:
    """On one machine the fleet's lock decides, on two the hosts' locks."""
    file = str(fleet.deployment("five"))
    words = ("--limit", "gpu04", "--deployment", file, "--yes", "--json", "--ttft-tolerance", "5000")
    first = fleet.start("rollout", *words)
    other = Fleet.__new__(Fleet)
    other.__dict__.update(fleet.__dict__, env={**fleet.env, "XDG_STATE_HOME": str(fleet.home / "other")})
    second = other.start("rollout", *words)
    results = [(p.communicate(timeout=200), p.returncode) for p in (first, second)]
    assert sorted(code for _, code in results) in ([0, 5], [0, 0]), results
    if sorted(code for _, code in results) == [0, 5]:
        loser = next(out for out, code in results if code == 5)
        assert "works on this host since" in str(loser)
    assert fleet.served()["gpu04"] == "five"


def test_rollback_of_one_host(fleet: Fleet) -> None:
    got = fleet.run("rollback", "--limit", "gpu04", "--yes", "--json")
    assert got.returncode in {0, 6}, got.stderr
    if got.returncode == 0:
        assert fleet.served()["gpu04"] == "three"
