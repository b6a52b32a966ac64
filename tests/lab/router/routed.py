"""A fleet of two stand-in engines, a host for the router before it, and clients that ask the one endpoint."""

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Self

import pytest

from inventory.errors import CheckRefused
from inventory.locks import find_lock
from inventory.routers import Kind, load_routers
from provision.wheelhouse import wheelhouse_of
from tests.lab.rollout.fleet import LOOSE, Fleet

__all__ = ["BOTH", "KEY", "Client", "Load", "Routed", "need_sglang_router"]

KEY = "sk-lab-canary-5f1d"
BOTH = "gpu01,gpu02"


def need_sglang_router() -> None:
    """Its wheels (40 MB) where `--push-wheels` takes them from; skips the test where pip can't get them."""
    try:
        wheelhouse_of(find_lock(f"{load_routers().sglang_router.lock}-cp311")).fetched(lambda _: None)
    except CheckRefused as e:
        pytest.skip(f"no wheels of sglang-router: {e.message}")


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
    def __init__(self, fleet: Fleet, kind: Kind = "haproxy") -> None:
        self.fleet, self.front, self.kind = fleet, fleet.lab.host("front"), kind
        self.client = Client(self.front.address)

    def router(self, *words: str, code: int = 0) -> Any:
        got = self.fleet.run("router", *words, "--host", "front", "--json")
        assert got.returncode == code, got.stdout[-3000:]
        assert KEY not in got.stdout + got.stderr
        return json.loads(got.stdout)

    def install(self, *words: str, limit: str = BOTH, code: int = 0) -> Any:
        file = str(self.fleet.deployment("one"))
        words = ("--deployment", file, "--kind", self.kind, "--push-wheels", *words)
        [host] = self.router("--limit", limit, *words, code=code)["hosts"]
        return host

    def rollout(self, version: str, *words: str) -> tuple[int, Any, str]:
        """Both at once. Exit code, the JSON document, the log."""
        file = str(self.fleet.deployment(version))
        line = ("--limit", BOTH, "--deployment", file, "--yes", "--json", "--canary", "0", "--serial", "100%")
        got = self.fleet.run("rollout", *line, *LOOSE, *words)
        return got.returncode, json.loads(got.stdout or "{}"), got.stderr

    def _status(self) -> list[dict[str, Any]]:
        """As the router itself says; the exit code is not of interest."""
        got = self.front.run(["python3", "/var/lib/eyas/router/router_ctl.py", "status"], check=False)
        told = json.loads(got.stdout)
        assert "backends" in told, told
        return list(told["backends"])

    def states(self) -> dict[str, str]:
        return {b["name"]: b["state"] for b in self._status()}

    def requests(self) -> dict[str, int]:
        return {b["name"]: b["requests"] or 0 for b in self._status()}

    def in_flight(self) -> dict[str, int]:
        return {b["name"]: b["in_flight"] or 0 for b in self._status()}

    def until(self, true: Callable[[], bool], within: float = 60) -> None:
        """Also while the router itself restarts."""
        end = time.monotonic() + within
        while True:
            with contextlib.suppress(AssertionError):
                if true():
                    return
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
