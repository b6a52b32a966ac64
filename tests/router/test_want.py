"""From the inventory to the files of a router: what is refused, what is written, what counts as a change."""

import functools
import json
from typing import Any

import pytest

from inventory.errors import CheckRefused, EyasError, UsageError
from inventory.locks import find_lock
from inventory.model import Deployment, Host, ModelRef
from inventory.routers import KINDS, Kind, load_routers
from provision.release import secret_digest
from provision.router.files import HERE, UNIT, render
from provision.router.plan import Bring, plan_router
from provision.router.state import HostState
from provision.router.want import RouterWant, kind_of, router_want
from provision.secrets import Secrets

KEY = "sk-canary"
GPUS = (Host(name="gpu01", address="10.0.0.1"), Host(name="gpu02", address="10.0.0.2"))
RUNNING = {"ActiveState": "active", "UnitFileState": "enabled", "DropInPaths": ""}


def deployment(**changes: Any) -> Deployment:
    base = {"name": "chat", "engine": "vllm", "target": ModelRef(repo="a/b"), "served_model_name": "chat"}
    return Deployment(**{**base, "host": "0.0.0.0", "api_key": "env:LAB_KEY", **changes})


def want(
    kind: Kind = "haproxy", hosts: tuple[Host, ...] = GPUS, port: int = 8080, listen: str = "0.0.0.0",
    **changes: Any,
) -> RouterWant:  # fmt: skip
    return router_want([(h, deployment(**changes)) for h in hosts], kind, port, listen, Secrets())


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_KEY", KEY)
    monkeypatch.setattr("provision.router.files.secret_digest", _digest)


#: It is slow on purpose; once is enough.
_digest = functools.cache(secret_digest)


def state(w: RouterWant | None = None, **changes: Any) -> HostState:
    """A host that has everything of ``w``, or nothing but a system."""
    files = render(w, (), env=env_of(w)) if w else None
    base: dict[str, Any] = {
        "files": dict(files.folder) if files else {"router.json": None},
        "unit_text": files.unit if files else None,
        "unit": RUNNING if files else {"ActiveState": "inactive", "UnitFileState": "", "DropInPaths": ""},
        "key_mode": "0600" if files else None,
        "package": "2.8.5-1ubuntu3" if files else None,
        "prepared": bool(files),
        "envs": frozenset({lock_id()[:16]} if files else ()),
        "uv": frozenset(),
        "python": "3.12.3",
        "glibc": "2.39",
    }
    return HostState(**{**base, **changes})


def lock_id() -> str:
    return find_lock(f"{load_routers().sglang_router.lock}-cp312").id


def env_of(w: RouterWant) -> str:
    return "" if w.kind == "haproxy" else f"/opt/eyas/envs/{lock_id()[:16]}"


def titles(w: RouterWant, s: HostState) -> list[str]:
    front = Host(name="front", address="10.0.0.9")
    return [c.title for c in plan_router(w, s, Bring(w, s, front, push=False), lambda _: None)]


@pytest.mark.parametrize(
    ("changes", "text", "hint"),
    [
        ({"host": "127.0.0.1", "api_key": None}, "listens on 127.0.0.1", "host: 0.0.0.0 and api_key"),
        ({"host": "127.0.0.1"}, "no router on another host", "host: 0.0.0.0 in the deployment"),
        ({"nodes": 2, "tensor_parallel": 2}, "one endpoint over 2 hosts", "--limit"),
        ({"served_model_name": 'x" or 1'}, "cannot stand in", "served_model_name"),
        ({"port": 0}, "", ""),
    ],
)
def test_what_cannot_be_routed_is_refused_with_a_next_step(changes: Any, text: str, hint: str) -> None:
    if not text:
        with pytest.raises(UsageError):
            want(port=0)
        return
    with pytest.raises(EyasError) as e:
        want(**changes)
    assert text in e.value.message
    assert hint in e.value.hint


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (Host(name="gpu01", address="127.0.0.1"), "loopback"),
        (Host(name="a b", address="10.0.0.1"), "cannot name a backend"),
        (Host(name="gpu01", address="10.0.0.1 weight 9"), "is no address"),
    ],
)
def test_hosts_that_cannot_be_written_down_are_refused(host: Host, text: str) -> None:
    with pytest.raises(EyasError, match=text):
        want(hosts=(host,))


def test_backends_of_two_models_or_two_keys_are_refused() -> None:
    two = [(GPUS[0], deployment()), (GPUS[1], deployment(served_model_name="other"))]
    with pytest.raises(CheckRefused, match="differ in model: chat, other"):
        router_want(two, "haproxy", 8080, "0.0.0.0", Secrets())
    two = [(GPUS[0], deployment()), (GPUS[1], deployment(api_key="file:/x"))]
    with pytest.raises(CheckRefused, match="differ in api_key"):
        router_want(two, "haproxy", 8080, "0.0.0.0", Secrets())


def test_where_a_backend_is_reached() -> None:
    far = Host(name="gpu03", address="bastion-alias", vars={"eyas_endpoint_address": "fd00::3"})
    assert [b.endpoint for b in want(hosts=(far,)).backends] == ["[fd00::3]:8000"]
    assert [b.endpoint for b in want(hosts=GPUS[:1], host="192.0.2.7").backends] == ["192.0.2.7:8000"]
    assert want(listen="::").listen == "::"
    with pytest.raises(UsageError, match="--listen"):
        want(listen="0.0.0.0; drop")
    with pytest.raises(UsageError) as e:
        kind_of("haprox")
    assert "haproxy" in e.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_files_hold_backends_and_drained_ones_and_never_the_key(kind: Kind) -> None:
    files = render(want(kind), ["gpu02", "gone"], env="/opt/eyas/envs/x")
    document = json.loads(files.folder["router.json"])
    assert document["drained"] == ["gpu02"]
    assert [b["endpoint"] for b in document["backends"]] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert document["counters"] == ["vllm:num_requests_running", "vllm:num_requests_waiting"]
    assert KEY not in files.unit + "".join(files.folder.values())
    assert f"LoadCredential=api-key.map:{files.key_path}" in files.unit
    if kind == "haproxy":
        lines = [
            x.strip() for x in files.folder["haproxy.cfg"].splitlines() if x.strip().startswith("server ")
        ]
        assert "description eyas-" in files.folder["haproxy.cfg"]
        same = [x for x in render(want(kind), []).folder["haproxy.cfg"].splitlines() if "description" in x]
        assert same[0] in files.folder["haproxy.cfg"].splitlines(), "drained or not, it is the same"
        assert lines == ["server gpu01 10.0.0.1:8000 weight 1", "server gpu02 10.0.0.2:8000 weight 0"]


def test_a_low_port_needs_one_capability_and_others_none() -> None:
    assert "CapabilityBoundingSet=\n" in render(want(), ()).unit
    low = render(want(port=443), ()).unit
    assert "AmbientCapabilities=CAP_NET_BIND_SERVICE" in low
    assert "PrivateUsers" not in low


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_differs_is_planned(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    w = want(kind)
    assert titles(w, state(w)) == []
    bare = titles(w, state())
    assert bare[0] == "system user and folders"
    assert bare[-2:] == ["API key as a systemd credential (0600)",
                         f"{kind}: 2 backends on port 8080, checked, started"]  # fmt: skip
    stopped = state(w, unit={**RUNNING, "ActiveState": "failed"})
    assert titles(w, stopped) == [f"{kind}: 2 backends on port 8080, checked, restarted (not active)"]
    one = want(kind, hosts=GPUS[:1])
    [title] = titles(one, state(w))
    assert "1 backends on port 8080, checked, reloaded (" in title
    monkeypatch.setenv("LAB_KEY", "another")
    changed = titles(want(kind), state(w))
    assert "restarted (its unit changes)" in changed[-1]


def test_what_somebody_drained_stays_drained() -> None:
    w = want()
    files = render(w, ["gpu01"])
    assert titles(w, state(w, files=dict(files.folder))) == []
    one = want(hosts=(*GPUS, Host(name="gpu03", address="10.0.0.3")))
    s = state(w, files=dict(files.folder))
    [change] = plan_router(one, s, Bring(one, s, GPUS[0], push=False), lambda _: None)
    assert "+    server gpu03 10.0.0.3:8000 weight 1" in change.diff
    assert "weight 0" not in "".join(x for x in change.diff.splitlines() if x.startswith("+"))
    assert change.disruptive


@pytest.mark.parametrize("text", [None, "", "[]", '{"drained": 5}', "{"])
def test_a_torn_document_is_no_crash(text: str | None) -> None:
    assert state(files={"router.json": text}).drained == ()


def test_an_old_haproxy_is_refused_and_another_kinds_files_go() -> None:
    w = want()
    with pytest.raises(CheckRefused, match=r"older than 2\.6"):
        titles(w, state(w, package="2.4.24-0ubuntu0.22.04.1"))
    other = state(want("sglang-router"), package="2.8.5-1")
    [title] = titles(w, other)
    assert title.startswith("haproxy: 2 backends")
    assert HERE.startswith("/var/lib/eyas/")
    assert UNIT == "eyas_router.service"


def test_a_python_without_a_lock_is_told() -> None:
    w = want("sglang-router")
    with pytest.raises(UsageError, match=r"sglang-router-0\.3\.2-any-cp39"):
        titles(w, state(w, python="3.9.2"))


def test_the_catalogue_says_why() -> None:
    found = load_routers()
    assert (
        find_lock(f"{found.sglang_router.lock}-cp312").packages["sglang-router"]
        == found.sglang_router.version
    )
    assert {p.name for p in found.passed_over} >= {"vllm-router", "nginx"}
    assert all(len(p.why) > 20 and p.source for p in found.passed_over)
