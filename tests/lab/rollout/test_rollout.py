"""Rollouts of real hosts, in the order of a fleet's life; each test says what every host serves after it."""

import json

import pytest

from tests.lab.rollout.fleet import LOOSE, Fleet

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
    fleet.kill_when(fleet.start("rollout", *words, *LOOSE), event)
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
    words = ("--limit", "gpu04", "--deployment", file, "--yes", "--json", *LOOSE)
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


def test_weights_come_from_the_neighbours(fleet: Fleet) -> None:
    """Two hosts have them, two copy; a broken copy on the way is mended; no key is left behind."""
    for name in ("gpu03", "gpu04"):
        fleet.lab.host(name).run(["sh", "-c", "rm -rf /var/lib/eyas/weights/*"])
    code, _, log = fleet.rollout("six", "--serial", "100%")
    assert code == 0, log
    assert "gpu03 target: copying from gpu0" in log.replace("\n", " ")
    assert "copied to 2 hosts" in log
    for name in fleet.names:
        left = fleet.lab.host(name).run(
            [
                "sh",
                "-c",
                "ls -d /run/eyas-copy-* 2>/dev/null; grep -rs copy- /home/*/.ssh /root/.ssh || true",
            ],
            check=False,
        )
        assert left.stdout == ""
    assert fleet.served() == dict.fromkeys(fleet.names, "six")


def test_drift_names_the_host_that_differs(fleet: Fleet) -> None:
    before = fleet.run("drift", "--limit", "gpu", "--json")
    known = {h["host"]: set(h["differences"]) for h in json.loads(before.stdout)["hosts"]}
    fleet.lab.fault("gpu02", "gpu:driver-570")
    fleet.lab.host("gpu03").run(["sh", "-c", "echo '# by hand' >>/etc/systemd/system/eyas-fl.service"])
    try:
        got = fleet.run("drift", "--limit", "gpu", "--json", "--detailed-exitcode")
    finally:
        fleet.lab.heal("gpu02")
        fleet.lab.host("gpu03").run(["sed", "-i", "/# by hand/d", "/etc/systemd/system/eyas-fl.service"])
    assert got.returncode == 8, got.stderr
    found = {h["host"]: h for h in json.loads(got.stdout)["hosts"]}
    assert "gpu02 differs from the other 3 in: driver 570" in found["gpu02"]["outlier"]
    edited = set(found["gpu03"]["differences"]) - known["gpu03"]
    assert edited == {"fl: unit files: /etc/systemd/system/eyas-fl.service was edited"}
    assert not found["gpu01"]["outlier"]
    assert set(found["gpu01"]["differences"]) == known["gpu01"]


def test_prune_keeps_what_is_served_and_the_way_back(fleet: Fleet) -> None:
    before = {
        h["host"]: h["releases"]
        for h in json.loads(fleet.run("releases", "--limit", "gpu", "--json").stdout)["hosts"]
    }
    got = fleet.run("prune", "--limit", "gpu", "--json")
    assert got.returncode == 0, got.stderr
    after = {
        h["host"]: h["releases"]
        for h in json.loads(fleet.run("releases", "--limit", "gpu", "--json").stdout)["hosts"]
    }
    for name in fleet.names:
        kept = {r["id"] for r in before[name] if r["role"]}
        assert len(kept) == 2
        assert {r["id"] for r in after[name]} == kept
    assert fleet.served() == dict.fromkeys(fleet.names, "six")
    status = json.loads(fleet.run("status", "--limit", "gpu", "--json").stdout)
    assert [h["state"] for h in status["hosts"]] == ["serving"] * 4
    back = fleet.run("rollback", "--limit", "gpu01", "--yes", "--json")
    assert back.returncode == 0, back.stderr
    assert fleet.served()["gpu01"] != "six"
