"""A fleet's life, in its order; each test says what every host serves after it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.rollout.hubfleet import HUB_MODEL, Fleet
from tests.lab.rollout.running import statuses

pytestmark = pytest.mark.lab


def test_the_first_rollout_takes_everything_over_the_wan_once(fleet: Fleet) -> None:
    """Four hosts, one model's and one wheelhouse's worth of bytes; the others copy from their neighbours."""
    code, document, log = fleet.first
    assert code == 0, log
    assert statuses(document) == dict.fromkeys(fleet.names, "done")
    assert fleet.served() == dict.fromkeys(fleet.names, "one")
    one_model = (fleet.home / "models/eyas-lab/target/model.safetensors").stat().st_size
    wheels = sum(f.stat().st_size for f in fleet.standin.dir.glob("*.whl"))
    assert HUB_MODEL < fleet.sent["target/.*safetensors"] == one_model
    assert fleet.sent["/files/"] == wheels
    assert log.count("copied to 3 hosts") == 3
    assert fleet.keys_left() == ""


def test_a_clean_fleet_has_no_drift_and_no_locks(fleet: Fleet) -> None:
    code, document, log = fleet.run("drift", "--limit", "gpu", "--detailed-exitcode")
    assert code == 0, (document, log)
    assert [(h["differences"], h["pending"], h["unseen"], h["outlier"]) for h in document["hosts"]] == [
        ([], [], [], "")
    ] * 4
    code, document, log = fleet.run("fleet-lock", "status", "--limit", "gpu")
    assert (code, document["here"], [h["holder"] for h in document["hosts"]]) == (0, None, [None] * 4), log


def test_canaries_that_serve_worse_go_back(fleet: Fleet) -> None:
    """One drafts half as well; one answers /health and its first completion, then hangs on completions."""
    engines: dict[str, dict[str, Any]] = {
        "gpu01": {"acceptance": 0.35},
        "gpu02": {"fault": "hang", "after_requests": 1},
    }
    words = ("--canary", "2", "--max-fail", "2")
    code, document, log = fleet.rollout("bad", *words, engines=engines).wait()
    assert code == 6, log
    went = {"gpu01": "rolled-back", "gpu02": "rolled-back", "gpu03": "untouched", "gpu04": "untouched"}
    assert statuses(document) == went
    why = {h["host"]: h["why"] for h in document["hosts"]}
    assert "accepted" in why["gpu01"]
    assert "deep health" in why["gpu02"]
    assert fleet.served() == dict.fromkeys(fleet.names, "one")


def test_unreachable_hosts_are_tried_again_and_never_counted_as_done(fleet: Fleet) -> None:
    fleet.lab.fault("gpu03", "link-down")
    fleet.lab.fault("gpu04", "link-down")
    try:
        run = fleet.rollout("two", "--serial", "100%")
        code, document, log = run.meanwhile({"done gpu02": lambda: fleet.lab.heal("gpu03")}).wait()
    finally:
        fleet.lab.heal("gpu03")
        fleet.lab.heal("gpu04")
    assert code == 3, log
    assert statuses(document) == {**dict.fromkeys(fleet.names[:3], "done"), "gpu04": "unreachable"}
    assert "trying again: gpu03, gpu04" in log
    assert fleet.served() == {**dict.fromkeys(fleet.names[:3], "two"), "gpu04": "one"}
    ends = {e["host"]: e["event"] for e in run.journal() if "host" in e}
    assert ends["gpu04"] == "unreachable"


def test_drift_names_the_host_that_differs(fleet: Fleet) -> None:
    fleet.lab.fault("gpu02", "gpu:driver-570")
    fleet.lab.host("gpu03").run(["sh", "-c", "echo '# by hand' >>/etc/systemd/system/eyas-fl.service"])
    try:
        code, document, log = fleet.run("drift", "--limit", "gpu", "--detailed-exitcode")
        same, _, _ = fleet.run("drift", "--limit", "gpu")
    finally:
        fleet.lab.heal("gpu02")
        fleet.lab.host("gpu03").run(["sed", "-i", "/# by hand/d", "/etc/systemd/system/eyas-fl.service"])
    assert (code, same) == (8, 0), log
    found = {h["host"]: h for h in document["hosts"]}
    assert "gpu02 differs from the other 3 in: driver 570" in found["gpu02"]["outlier"]
    edited = ["fl: unit files: /etc/systemd/system/eyas-fl.service was edited"]
    assert found["gpu03"]["differences"] == edited
    assert (found["gpu01"]["outlier"], found["gpu01"]["differences"]) == ("", [])
    assert "gpu04 differs from the other 3 in: release of fl" in found["gpu04"]["outlier"]


def stream(fleet: Fleet, host: str, began: Path) -> dict[str, Any]:
    """One streamed completion asked on the host; ``began`` is made at its first token."""
    program = (
        "import json,sys,time,urllib.request as u\n"
        "b={'model':'tiny','prompt':'count on','max_tokens':400,'stream':True,"
        "'stream_options':{'include_usage':True}}\n"
        "r=u.Request('http://127.0.0.1:8000/v1/completions',json.dumps(b).encode(),"
        "{'Content-Type':'application/json'})\n"
        "usage={}\n"
        "lines=[]\n"
        "for line in u.urlopen(r,timeout=60):\n"
        "  lines.append(line.decode().strip())\n"
        "  if len(lines)==1: print('began',flush=True)\n"
        "usage=[json.loads(x[5:])['usage'] for x in lines if x.startswith('data: {') and '\"usage\"' in x]\n"
        "print(json.dumps({'end':time.time(),'usage':usage[-1],'last':[x for x in lines if x][-1]}))\n"
    )
    with fleet.lab.host(host).popen(["python3", "-c", program]) as p:
        assert p.stdout
        assert p.stdout.readline() == "began\n"
        began.touch()
        return dict(json.loads(p.stdout.read()))


@pytest.mark.parametrize(("patience", "version"), [("1", "two"), ("60", "three")])
def test_a_request_in_flight_ends_before_the_switch(
    fleet: Fleet, tmp_path: Path, patience: str, version: str
) -> None:
    """After `--drain` has taken the host out of its router; with too little patience nothing is switched."""
    assert set(fleet.served("gpu01").values()) == {"two"}
    fleet.engine("gpu01", "two", tokens_per_s=15)
    began, restored, told = tmp_path / "began", tmp_path / "restored", []
    drain = f"sh -c 'until [ -e {began} ]; do sleep 0.05; done'"
    words = ("--drain", drain, "--restore", f"touch {restored}", "--drain-timeout", patience)
    run = fleet.rollout("three", *words, limit="gpu01")
    run.meanwhile({"draining gpu01": lambda: told.append(stream(fleet, "gpu01", began))})
    code, document, log = run.wait()
    events = {e["event"]: e["time"] for e in run.journal() if e.get("host") == "gpu01"}
    fleet.engine("gpu01", "two")
    assert told
    assert told[0]["last"] == "data: [DONE]"
    assert told[0]["usage"]["completion_tokens"] == 400
    assert restored.exists()
    assert fleet.served("gpu01") == {"gpu01": version}
    if patience == "1":
        assert (code, statuses(document)) == (5, {"gpu01": "failed"}), log
        assert "requests are still running" in log
        assert "switching" not in events
    else:
        assert (code, statuses(document)) == (0, {"gpu01": "done"}), log
        assert events["draining"] < told[0]["end"] < events["switching"]


def test_two_operators_and_a_lock_taken_away(fleet: Fleet, tmp_path: Path) -> None:
    """On one machine the fleet's lock decides, on two the hosts' locks; whose lock is gone stops in time."""
    seen = {}
    former = fleet.served("gpu04")

    def others() -> None:
        seen["status"] = fleet.run("fleet-lock", "status", "--limit", "gpu04")
        both = {
            "same": fleet.rollout("four", limit="gpu04"),
            "other": fleet.rollout("four", limit="gpu04", env={"XDG_STATE_HOME": str(fleet.home / "other")}),
        }
        seen.update({name: run.wait() for name, run in both.items()})
        seen["release"] = fleet.run("fleet-lock", "release", "--limit", "gpu04")
        (tmp_path / "go").touch()

    drain = f"sh -c 'until [ -e {tmp_path}/go ]; do sleep 0.05; done'"
    run = fleet.rollout("three", "--drain", drain, limit="gpu04")
    code, document, log = run.meanwhile({"draining gpu04": others}).wait()
    told = seen["status"][1]
    assert told["here"]["what"] == told["hosts"][0]["holder"]["what"] == f"rollout {document['id']}"
    assert (seen["same"][0], seen["other"][0]) == (5, 5)
    assert "another run works on this fleet" in seen["same"][2]
    assert "works on this host since" in seen["other"][2]
    assert seen["release"][1]["hosts"][0]["holder"] == told["hosts"][0]["holder"]
    assert (code, statuses(document)) == (5, {"gpu04": "failed"}), log
    assert "the lock on this host was taken away" in log
    assert fleet.served("gpu04") == former
    code, document, log = fleet.rollout("three", limit="gpu04").wait()
    assert (code, statuses(document)) == (0, {"gpu04": "done"}), log
    assert fleet.served("gpu04") == {"gpu04": "three"}


def test_rollback_of_one_host(fleet: Fleet) -> None:
    code, document, log = fleet.run("rollback", "--limit", "gpu01", "--yes")
    assert (code, statuses(document)) == (0, {"gpu01": "done"}), log
    assert fleet.served("gpu01") == {"gpu01": "two"}


def test_prune_keeps_what_is_served_and_the_way_back(fleet: Fleet) -> None:
    served = fleet.served()
    before = {h["host"]: h["releases"] for h in fleet.run("releases", "--limit", "gpu")[1]["hosts"]}
    code, _, log = fleet.run("prune", "--limit", "gpu")
    assert code == 0, log
    after = {h["host"]: h["releases"] for h in fleet.run("releases", "--limit", "gpu")[1]["hosts"]}
    for name in fleet.names:
        kept = {r["id"] for r in before[name] if r["role"]}
        assert len(kept) == 2
        assert {r["id"] for r in after[name]} == kept
    assert fleet.served() == served
    status = fleet.run("status", "--limit", "gpu")[1]
    assert [h["state"] for h in status["hosts"]] == ["serving"] * 4
