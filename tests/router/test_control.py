"""The program that drains and restores, on a router that is only told to it; and the hook of a rollout."""

import importlib.util
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from inventory.errors import ChangeFailed, CheckRefused, EyasError, HostUnreachable
from inventory.model import Host
from provision.programs import FOLDER
from provision.rollout.hooks import RouterHook
from provision.router.state import Router, look
from provision.shell import Result, Shell

STAT = (
    "# pxname,svname,scur,stot,status,weight,check_status,last_chk,\n"
    "openai,FRONTEND,3,9,OPEN,,,,\n"
    "engines,gpu01,2,5,UP,1,L7OK,,\n"
    "engines,gpu02,0,4,DOWN,1,L4CON,Connection refused,\n"
    "engines,gpu03,0,0,UP,0,L7OK,,\n"
    "engines,BACKEND,2,9,UP,1,,,\n\n"
)


def control(folder: Path) -> Any:
    """A fresh copy of the program, whose folder is ``folder``."""
    spec = importlib.util.spec_from_file_location("router_ctl", FOLDER / "router_ctl.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Any = module
    made.HERE, made.LOCK, made.POLL_S = folder, str(folder / "lock"), 0
    backends = [{"name": n, "endpoint": f"10.0.0.{i}:8000"} for i, n in enumerate(("gpu01", "gpu02"), 1)]
    words = {"kind": "haproxy", "model": "m", "port": 8080, "backends": backends, "drained": [],
             "counters": ["vllm:num_requests_running"], "api_key_digest": "0" * 32}  # fmt: skip
    (folder / "router.json").write_text(json.dumps(words))
    lines = [f"    server {b['name']} {b['endpoint']} weight 1\n" for b in backends]
    (folder / "haproxy.cfg").write_text("backend engines\n" + "".join(lines))
    return made


@dataclass
class FakeRouter:
    """``left``: requests in flight of a backend at each look."""

    up: dict[str, bool] = field(default_factory=lambda: {"gpu01": True, "gpu02": True})
    out: set[str] = field(default_factory=set)
    left: list[int] = field(default_factory=list)

    def rows(self) -> dict[str, dict[str, Any]]:
        flight = self.left.pop(0) if self.left else 0
        return {
            n: {"up": up, "drained": n in self.out, "in_flight": flight, "requests": 1, "why": ""}
            for n, up in self.up.items()
        }

    def mark(self, backend: dict[str, str], out: bool) -> None:
        (self.out.add if out else self.out.discard)(backend["name"])


@pytest.fixture
def ctl(tmp_path: Path) -> Any:
    made = control(tmp_path)
    made.fake = FakeRouter()
    made.KINDS = {"haproxy": lambda told: made.fake}
    made.running = lambda told, one: None
    made.completes = lambda told, one: None
    return made


def weights(ctl: Any) -> list[str]:
    return [x.split()[-1] for x in (ctl.HERE / "haproxy.cfg").read_text().splitlines() if "server" in x]


def test_drain_waits_for_the_last_request_and_is_kept(ctl: Any) -> None:
    ctl.fake.left = [0, 2, 1, 0]
    assert ctl.main("drain", "gpu01", "10", "0") == {"drained": "gpu01", "in_flight": 0}
    assert ctl.fake.left == []
    assert (ctl.fake.out, ctl.read()["drained"], weights(ctl)) == ({"gpu01"}, ["gpu01"], ["0", "1"])
    assert ctl.main("restore", "gpu01", "0") == {"restored": "gpu01"}
    assert (ctl.fake.out, ctl.read()["drained"], weights(ctl)) == (set(), [], ["1", "1"])


def test_requests_that_do_not_end_leave_it_drained(ctl: Any) -> None:
    ctl.fake.left = [0, 3]
    with pytest.raises(ctl.Said) as e:
        ctl.main("drain", "gpu01", "-1", "0")
    assert (e.value.code, e.value.words["in_flight"]) == (1, 3)
    assert ctl.read()["drained"] == ["gpu01"]


def test_the_last_one_stays_in_and_one_that_is_down_may_go(ctl: Any) -> None:
    ctl.fake.up["gpu02"] = False
    with pytest.raises(ctl.Said) as e:
        ctl.main("drain", "gpu01", "9", "-1")
    assert e.value.code == 4
    assert ctl.read()["drained"] == []
    assert ctl.main("drain", "gpu02", "9", "-1")["drained"] == "gpu02"
    with pytest.raises(ctl.Said) as e:
        ctl.main("drain", "gpu07", "9", "-1")
    assert e.value.code == 3


def test_one_that_answers_no_completion_is_not_restored(ctl: Any) -> None:
    ctl.main("drain", "gpu01", "9", "0")

    def silent(told: Any, one: Any) -> None:
        raise ctl.Silent("refused")

    ctl.completes = silent
    with pytest.raises(ctl.Said) as e:
        ctl.main("restore", "gpu01", "-1")
    assert e.value.code == 5
    assert ctl.read()["drained"] == ["gpu01"]


def test_requests_in_the_engine_itself_count_too(ctl: Any) -> None:
    pages = iter([2, 1, 0])
    ctl.running = lambda told, one: next(pages)
    assert ctl.main("drain", "gpu01", "9", "0")["in_flight"] == 0
    assert next(pages, None) is None


def test_what_haproxy_says_is_read(tmp_path: Path) -> None:
    made = control(tmp_path)
    it = made.Haproxy({})
    it.ask = lambda _: STAT
    rows = it.rows()
    assert [(n, r["up"], r["drained"], r["in_flight"]) for n, r in rows.items()] == [
        ("gpu01", True, False, 2), ("gpu02", False, False, 0), ("gpu03", True, True, 0),
    ]  # fmt: skip
    assert rows["gpu02"]["why"] == "L4CON Connection refused"
    it.ask = lambda _: "No such server.\n"
    with pytest.raises(made.Silent, match="No such server"):
        it.mark({"name": "gpu01"}, True)


def test_a_reload_that_failed_is_seen(tmp_path: Path) -> None:
    made = control(tmp_path)
    (tmp_path / "haproxy.cfg").write_text("global\n    description eyas-new\n")
    it = made.Haproxy({})
    it.ask = lambda _: "Name: HAProxy\ndescription: eyas-old\nnode: x\n"
    assert not it.runs_this()
    it.ask = lambda _: "Name: HAProxy\ndescription: eyas-new\nnode: x\n"
    assert it.runs_this()


def test_an_engines_own_counters_are_summed_over_labels(tmp_path: Path) -> None:
    made = control(tmp_path)
    told = {"counters": ["vllm:num_requests_running", "vllm:num_requests_waiting"]}
    page = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 2.0\n'
    made.http = lambda *_, **__: page + "vllm:num_requests_waiting 4\nvllm:num_requests_running_total 9\n"
    made.api_key = lambda _: "k"
    assert made.running(told, {"endpoint": "x:1"}) == 7
    made.http = lambda *_, **__: "nothing 1\n"
    assert made.running(told, {"endpoint": "x:1"}) is None


class Told:
    """A shell that answers with one result and remembers what it was asked."""

    def __init__(self, code: int, stdout: str, stderr: str = "") -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr
        self.host = Host(name="front", address="x")
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: tuple[str, ...], **_: Any) -> Result:
        self.asked.append(argv)
        return Result(argv, self.code, self.stdout, self.stderr, 0.0)


def shell(code: int, stdout: str, stderr: str = "") -> Shell:
    return cast("Shell", Told(code, stdout, stderr))


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "kind", "text"),
    [
        (1, '{"why": "2 requests are still running"}', "", ChangeFailed, "gpu01: 2 requests"),
        (2, '{"why": "admin.sock: refused"}', "", HostUnreachable, "does not answer"),
        (3, '{"why": "gpu01 is no backend"}', "", CheckRefused, "no backend"),
        (4, '{"why": "gpu01 is the only backend that is up"}', "", ChangeFailed, "only backend"),
        (5, '{"why": "no completion"}', "", ChangeFailed, "no completion"),
        (2, "", "python3: can't open file '/var/lib/eyas/router/router_ctl.py'", CheckRefused, "no router"),
        (124, "", "", HostUnreachable, "nothing usable"),
        (0, "a banner", "", HostUnreachable, "nothing usable"),
    ],
)
def test_each_refusal_has_its_class_and_a_next_step(
    code: int, stdout: str, stderr: str, kind: type[EyasError], text: str
) -> None:
    with pytest.raises(kind) as e:
        Router(shell(code, stdout, stderr)).drain("gpu01", 9)
    assert text in e.value.message
    assert e.value.hint or "nothing usable" in text


def test_a_look_that_shows_nothing_is_no_empty_host() -> None:
    with pytest.raises(HostUnreachable, match="nobody could look"):
        look(shell(1, "", "boom"), "")


def test_the_hook_tries_a_lost_router_once_more_and_then_fails_this_host_only() -> None:
    lost: list[str] = []
    said: list[str] = []
    away = shell(2, '{"why": "gone"}')
    hook = RouterHook(lambda: away, lambda: lost.append("front"), lambda _, text: said.append(text))
    with pytest.raises(ChangeFailed, match="front: the router does not answer"):
        hook.drain("gpu01", 9)
    assert lost == ["front"]


def test_a_rollout_does_not_go_on_without_its_router() -> None:
    none = shell(2, "", "python3: can't open file '/var/lib/eyas/router/router_ctl.py'")
    hook = RouterHook(lambda: none, lambda: None, lambda _, text: None)
    with pytest.raises(CheckRefused, match="no router of eyas"):
        hook.look()
    with pytest.raises(ChangeFailed, match="no router of eyas"):
        hook.drain("gpu01", 9)


def test_a_host_that_is_not_behind_the_router_is_switched_all_the_same() -> None:
    said: list[str] = []
    other = shell(3, '{"why": "gpu09 is no backend of this router"}')
    hook = RouterHook(lambda: other, lambda: None, lambda _, text: said.append(text))
    hook.restore("gpu09")
    assert said == ["not through the router: gpu09 is no backend of this router"]


@pytest.fixture
def sglang(tmp_path: Path) -> Any:
    """The other router, as a dictionary of workers behind its HTTP API."""
    made = control(tmp_path)
    words = made.read() | {"kind": "sglang-router", "listen_url": "0.0.0.0", "metrics_port": 8081}
    (tmp_path / "router.json").write_text(json.dumps(words))
    made.api_key = lambda _: "k"
    made.workers = {"http://10.0.0.1:8000": {"id": "1", "load": 3, "is_healthy": True}}
    made.asked = []

    def http(url: str, key: str, method: str = "GET", body: Any = None, timeout: float = 5.0) -> str:
        made.asked.append((method, url))
        if url == "http://127.0.0.1:8081/metrics":
            line = 'smg_worker_cb_outcomes_total{worker="http://10.0.0.1:8000",outcome="%s"} %d\n'
            return line % ("success", 6) + line % ("failure", 1)
        assert url.startswith("http://127.0.0.1:8080/workers") or "/metrics" in url
        if method == "DELETE":
            made.workers = {u: w for u, w in made.workers.items() if w["id"] != url.rsplit("/", 1)[1]}
        elif method == "POST":
            made.workers[body["url"]] = {"id": "9", "load": 0, "is_healthy": True}
        return json.dumps({"workers": [{"url": u, **w} for u, w in made.workers.items()]})

    made.http = http
    return made


def test_a_worker_that_never_answered_is_down_and_not_drained(sglang: Any) -> None:
    told = sglang.main("status")
    assert [(b["state"], b["in_flight"]) for b in told["backends"]] == [("up", 3), ("down", None)]
    assert [b["requests"] for b in told["backends"]] == [7, 0]
    assert sglang.as_wanted()


def test_a_reload_adds_and_removes_workers(sglang: Any) -> None:
    sglang.workers["http://10.0.0.9:8000"] = {"id": "4", "load": 0, "is_healthy": True}
    sglang.note("gpu01", True)
    sglang.main("sync")
    assert set(sglang.workers) == {"http://10.0.0.2:8000"}
    assert sglang.as_wanted()
    sglang.main("sync")
    assert [m for m, _ in sglang.asked].count("POST") == 1
