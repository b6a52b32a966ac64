"""A real HAProxy, then a real sglang-router, before two stand-in engines: what clients see of each step."""

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.packages import offer
from tests.lab.rollout.fleet import Fleet
from tests.lab.router.routed import KEY, Load, Routed, need_sglang_router

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def fleet(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Both engines serve release ``one``; nothing is on the front but what apt may find there."""
    lab = make_lab(["gpu01", "gpu02", "front"], profile="rtx4090x1")
    fleet = Fleet(lab, tmp_path_factory.mktemp("routed"))
    fleet.env["EYAS_LAB_KEY"] = KEY
    fleet.extra = {"host": "0.0.0.0", "api_key": "env:EYAS_LAB_KEY"}
    with ThreadPoolExecutor() as pool:
        offered = pool.submit(offer, lab, "front", "haproxy")
        code, _, log = Routed(fleet).rollout("one")
        assert code == 0, log
        offered.result()
    try:
        yield fleet
    finally:
        lab.down()


@pytest.fixture(scope="module", params=["haproxy", pytest.param("sglang-router", marks=pytest.mark.long)])
def routed(fleet: Fleet, request: pytest.FixtureRequest) -> Routed:
    """One router after the other on the same host: the second takes the first one's place.

    It does all that the first did and costs as much time again, so it is for `./eyas test --long`.
    """
    if request.param == "sglang-router":
        need_sglang_router()
    return Routed(fleet, request.param)


def test_check_writes_nothing_then_install_then_nothing_to_do(routed: Routed) -> None:
    before = routed.files()
    host = routed.install("--check", "--diff", "--detailed-exitcode", code=8)
    assert (host["status"], host["changed"]) == ("pending", 0)
    assert {"haproxy": "server gpu01 "}.get(routed.kind, routed.kind) in host["changes"][-1]["diff"]
    assert routed.files() == before
    host = routed.install()
    assert (host["status"], host["changed"]) == ("changed", len(host["changes"]))
    before = routed.files()
    assert routed.install()["changed"] == 0
    assert routed.files() == before
    level = routed.front.run(["systemd-analyze", "security", "--threshold=20", "eyas_router.service"])
    assert "Overall exposure" in level.stdout
    shown = routed.front.run(
        ["sh", "-c", "ps axww; systemctl cat eyas_router; journalctl -b --no-pager"]
    ).stdout
    assert routed.kind in shown
    assert KEY not in shown


def test_requests_are_spread_and_need_the_key(routed: Routed) -> None:
    """HAProxy evens them out; the other sends a prompt where its beginning was seen before."""
    routed.until(lambda: set(routed.states().values()) == {"up"})
    before = routed.requests()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda n: routed.client.ask(prompt=f"{n} " * 200), range(24))) == {200}
    after = routed.requests()
    assert all(after[name] - before[name] >= 6 for name in after), (before, after)
    assert (routed.client.ask(key="wrong"), routed.client.ask(key="")) == (401, 401)
    if routed.kind == "sglang-router":
        assert {routed.client.ask(prompt="the same " * 200) for _ in range(8)} == {200}
        again = routed.requests()
        assert sorted(again[name] - after[name] for name in after) == [0, 8]


def test_drain_lets_a_stream_end_and_sends_no_new_ones(routed: Routed) -> None:
    routed.slow(8)
    began = [threading.Event(), threading.Event()]
    with ThreadPoolExecutor() as pool:
        streams = [pool.submit(routed.client.stream, 480, e) for e in began]
        assert all(e.wait(20) for e in began)
        busy = next(name for name, number in routed.in_flight().items() if number)
        [other] = {"gpu01", "gpu02"} - {busy}
        drained = pool.submit(routed.router, "drain", busy)
        routed.until(lambda: routed.states()[busy] == "drained")
        before = routed.requests()
        assert {routed.client.ask() for _ in range(6)} == {200}
        after = routed.requests()
        assert (after.get(busy, 0) - before.get(busy, 0), after[other] - before[other]) == (0, 6)
        in_flight = [s for s in streams if not s.done()]
        assert not (in_flight and drained.done()), (routed.in_flight(), drained.result())
        assert in_flight, "the streams ended too early to see a drain wait for them"
        assert all(s.result(90).rstrip().endswith("[DONE]") for s in streams)
        told = {b["name"]: b["state"] for b in drained.result(60)["backends"]}
        assert told == {busy: "drained", other: "up"}
    routed.slow(None)
    routed.front.run(["systemctl", "restart", "eyas_router"])
    routed.until(lambda: routed.states() == {busy: "drained", other: "up"})
    assert routed.install()["changed"] == 0
    refused = routed.router("drain", other, code=5)
    assert "only backend" in refused["error"]
    routed.router("restore", busy)
    assert routed.states() == {"gpu01": "up", "gpu02": "up"}
    assert "gpu09 is no backend" in routed.router("drain", "gpu09", code=4)["error"]


def test_a_dead_backend_is_left_out_and_not_restored(routed: Routed) -> None:
    with Load(routed.client) as load:
        routed.fleet.lab.host("gpu01").run(["systemctl", "kill", "-s", "KILL", "eyas-fl.service"])
        routed.fleet.lab.host("gpu01").run(["systemctl", "stop", "eyas-fl.service"])
        routed.until(lambda: routed.states()["gpu01"] == "down")
        broken = len(load.failed)
        before = load.asked
        routed.until(lambda: load.asked > before + 10)
    assert len(load.failed) == broken <= 2, load.failed  # what was in flight when it died
    assert "completion" in routed.router("restore", "gpu01", "--timeout", "1", code=5)["error"]
    routed.fleet.lab.host("gpu01").run(["systemctl", "start", "eyas-fl.service"])
    routed.until(lambda: routed.states()["gpu01"] == "up")


def test_a_reload_with_other_backends_keeps_the_stream(routed: Routed) -> None:
    routed.slow(10)
    began = threading.Event()
    with ThreadPoolExecutor() as pool:
        text = pool.submit(routed.client.stream, 450, began)
        assert began.wait(20)
        host = routed.install(limit="gpu01")
        assert "reloaded" in host["changes"][-1]["title"]
        assert list(routed.states()) == ["gpu01"]
        routed.install()
        assert text.result(60).rstrip().endswith("[DONE]")
    routed.slow(None)
    routed.until(lambda: set(routed.states().values()) == {"up"})


def test_rollout_through_the_router_loses_no_request(routed: Routed) -> None:
    version = f"after-{routed.kind}"
    with Load(routed.client) as load:
        code, document, log = routed.rollout(version, "--router", "front")
    assert code == 0, log
    assert {h["status"] for h in document["hosts"]} == {"done"}
    assert load.failed == []
    assert load.asked > 20
    assert "draining" in log
    served = {n: s for n, s in routed.fleet.served().items() if n != "front"}
    assert served == dict.fromkeys(("gpu01", "gpu02"), version)
    assert set(routed.states().values()) == {"up"}


def test_a_configuration_that_does_not_run_is_put_back(routed: Routed) -> None:
    """Its port is taken by somebody else: the former one serves again."""
    if routed.kind != "haproxy":
        pytest.skip("the same way back, but the launcher is given 90 s to come up")
    taken = subprocess.Popen(routed.front.enter_argv(["python3", "-m", "http.server", "8091"]))
    try:
        host = routed.install("--port", "8091", code=6)
        assert host["status"] == "rolled-back", host
    finally:
        taken.kill()
        taken.wait()
    assert routed.client.ask() == 200
