"""A real HAProxy before two stand-in engines, in the order of its life: what clients see of each step."""

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Self

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.packages import offer
from tests.lab.rollout.fleet import LOOSE, Fleet

pytestmark = pytest.mark.lab

KEY = "sk-lab-canary-5f1d"
BOTH = "gpu01,gpu02"


class Client:
    """Asks the one endpoint, as anybody would."""

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}:8080/v1/completions"

    def open(self, *, key: str = KEY, timeout: float = 60, **words: Any) -> Any:
        body = {"model": "tiny", "prompt": "one two", "max_tokens": 2, **words}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        return urllib.request.urlopen(
            urllib.request.Request(self.url, json.dumps(body).encode(), headers), timeout=timeout
        )

    def ask(self, **words: Any) -> int:
        try:
            with self.open(**words) as r:
                r.read()
                return int(r.status)
        except urllib.error.HTTPError as e:
            e.close()
            return e.code

    def stream(self, tokens: int, began: threading.Event | None = None) -> str:
        """The whole text of a streamed answer; ``began`` is set with its first bytes."""
        with self.open(stream=True, max_tokens=tokens, ignore_eos=True) as r:
            text = r.read(16)
            if began:
                began.set()
            return str((text + r.read()).decode())


class Load:
    """Requests without a pause while the block lasts; ``failed``: what was told instead of an answer."""

    def __init__(self, client: Client) -> None:
        self.client, self.asked = client, 0
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(s,), daemon=True) for s in (False, True)]

    def _loop(self, stream: bool) -> None:
        while not self._stop.is_set():
            try:
                if stream:
                    assert "[DONE]" in (text := self.client.stream(8)), text
                elif (code := self.client.ask()) != 200:
                    self.failed.append(f"HTTP {code}")
            except (OSError, HTTPException, AssertionError) as e:
                self.failed.append(f"{type(e).__name__}: {e}")
            self.asked += 1
            time.sleep(0.05)

    def __enter__(self) -> Self:
        for t in self._threads:
            t.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for t in self._threads:
            t.join(60)


class Routed:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.front = fleet, fleet.lab.host("front")
        self.client = Client(self.front.address)

    def router(self, *words: str, code: int = 0) -> Any:
        got = self.fleet.run("router", *words, "--host", "front", "--json")
        assert got.returncode == code, got.stdout[-3000:]
        assert KEY not in got.stdout + got.stderr
        return json.loads(got.stdout)

    def install(self, *words: str, code: int = 0) -> Any:
        file = str(self.fleet.deployment("one"))
        [host] = self.router("--limit", BOTH, "--deployment", file, *words, code=code)["hosts"]
        return host

    def states(self) -> dict[str, str]:
        """As the router itself says; the exit code is not of interest."""
        got = self.front.run(["python3", "/var/lib/eyas/router/router_ctl.py", "status"], check=False)
        return {b["name"]: b["state"] for b in json.loads(got.stdout)["backends"]}

    def requests(self) -> dict[str, int]:
        got = self.front.run(["python3", "/var/lib/eyas/router/router_ctl.py", "status"])
        return {b["name"]: b["requests"] for b in json.loads(got.stdout)["backends"]}

    def until(self, true: Callable[[], bool], within: float = 60) -> None:
        end = time.monotonic() + within
        while not true():
            assert time.monotonic() < end, self.states()
            time.sleep(0.2)

    def slow(self, tokens_per_s: float | None) -> None:
        """One stream's speed without speculation, about three times that with it; None: as it was."""
        for name in ("gpu01", "gpu02"):
            self.fleet.fault(name, "one", **({"tokens_per_s": tokens_per_s} if tokens_per_s else {}))

    def files(self) -> str:
        """Every file of the router's host that anybody could have written, with its time and size."""
        script = (
            "find /etc /opt /usr /var/lib -xdev -printf '%p %T@ %s %m\\n' 2>/dev/null "
            "| grep -v -e /var/lib/systemd/ | sort"
        )
        return self.front.run(["sh", "-c", script]).stdout


@pytest.fixture(scope="module")
def routed(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    lab = make_lab(["gpu01", "gpu02", "front"], profile="rtx4090x1")
    fleet = Fleet(lab, tmp_path_factory.mktemp("routed"))
    fleet.env["EYAS_LAB_KEY"] = KEY
    fleet.extra = {"host": "0.0.0.0", "api_key": "env:EYAS_LAB_KEY"}
    with ThreadPoolExecutor() as pool:
        offered = pool.submit(offer, lab, "front", "haproxy")
        code, _, log = rollout(fleet, "one")
        assert code == 0, log
        offered.result()
    try:
        yield Routed(fleet)
    finally:
        lab.down()


def rollout(fleet: Fleet, version: str, *words: str) -> tuple[int, Any, str]:
    file = str(fleet.deployment(version))
    line = ("--limit", BOTH, "--deployment", file, "--yes", "--json", "--canary", "0", "--serial", "100%")
    got = fleet.run("rollout", *line, *LOOSE, *words)
    return got.returncode, json.loads(got.stdout or "{}"), got.stderr


def test_check_writes_nothing_then_install_then_nothing_to_do(routed: Routed) -> None:
    before = routed.files()
    host = routed.install("--check", "--diff", "--detailed-exitcode", code=8)
    assert (host["status"], host["changed"]) == ("pending", 0)
    assert "server gpu01 " in host["changes"][-1]["diff"]
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
    assert "haproxy" in shown
    assert KEY not in shown


def test_requests_are_spread_and_need_the_key(routed: Routed) -> None:
    routed.until(lambda: set(routed.states().values()) == {"up"})
    before = routed.requests()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: routed.client.ask(), range(24))) == {200}
    after = routed.requests()
    assert all(after[name] - before[name] >= 6 for name in after), (before, after)
    assert (routed.client.ask(key="wrong"), routed.client.ask(key="")) == (401, 401)


def test_drain_lets_a_stream_end_and_sends_no_new_ones(routed: Routed) -> None:
    routed.slow(10)
    began = [threading.Event(), threading.Event()]
    with ThreadPoolExecutor() as pool:
        streams = [pool.submit(routed.client.stream, 400, e) for e in began]
        assert all(e.wait(20) for e in began)
        drained = pool.submit(routed.router, "drain", "gpu01")
        routed.until(lambda: routed.states()["gpu01"] == "drained")
        before = routed.requests()
        assert {routed.client.ask() for _ in range(6)} == {200}
        after = routed.requests()
        assert (after["gpu01"] - before["gpu01"], after["gpu02"] - before["gpu02"]) == (0, 6)
        assert not drained.done(), "a stream is in flight, and the drain waits for it"
        assert all(s.result(90).rstrip().endswith("[DONE]") for s in streams)
        assert drained.result(60)["backends"][0]["state"] == "drained"
    routed.slow(None)
    routed.front.run(["systemctl", "restart", "eyas_router"])
    routed.until(lambda: routed.states() == {"gpu01": "drained", "gpu02": "up"})
    assert routed.install()["changed"] == 0
    refused = routed.router("drain", "gpu02", code=5)
    assert "only backend" in refused["error"]
    routed.router("restore", "gpu01")
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
        file = str(routed.fleet.deployment("one"))
        words = ("--deployment", file, "--limit")
        [host] = routed.router(*words, "gpu01")["hosts"]
        assert "reloaded" in host["changes"][-1]["title"]
        assert list(routed.states()) == ["gpu01"]
        [host] = routed.router(*words, BOTH)["hosts"]
        assert text.result(60).rstrip().endswith("[DONE]")
    routed.slow(None)
    routed.until(lambda: set(routed.states().values()) == {"up"})


def test_rollout_through_the_router_loses_no_request(routed: Routed) -> None:
    with Load(routed.client) as load:
        code, document, log = rollout(routed.fleet, "two", "--router", "front")
    assert code == 0, log
    assert {h["status"] for h in document["hosts"]} == {"done"}
    assert load.failed == []
    assert load.asked > 20
    assert "draining" in log
    served = {n: s for n, s in routed.fleet.served().items() if n != "front"}
    assert served == {"gpu01": "two", "gpu02": "two"}
    assert set(routed.states().values()) == {"up"}


def test_a_configuration_that_does_not_run_is_put_back(routed: Routed) -> None:
    """Its port is taken by somebody else: the former one serves again."""
    taken = subprocess.Popen(routed.front.enter_argv(["python3", "-m", "http.server", "8091"]))
    try:
        host = routed.install("--port", "8091", code=6)
        assert host["status"] == "rolled-back", host
    finally:
        taken.kill()
        taken.wait()
    assert routed.client.ask() == 200
