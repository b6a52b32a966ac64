"""The ranks' supervisors over real connections: together or not at all."""

import contextlib
import importlib.util
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "systemd" / "group.py"
spec = importlib.util.spec_from_file_location("eyas_onhost_group", PROGRAM)
assert spec
assert spec.loader
onhost: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(onhost)

Make = Callable[..., Any]


def eventually(true: Callable[[], Any], within: float = 5) -> Any:
    end = time.monotonic() + within
    while not (answer := true()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return answer


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """``make(rank, release)``: one end of a group of two on addresses of the loopback."""
    monkeypatch.setattr(onhost, "BEAT_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    members = [{"rank": n, "host": f"h{n}", "address": f"127.0.0.{n + 1}"} for n in range(2)]
    made = []

    def one(rank: int, release: str = "r1", peer_s: float = 5) -> Any:
        kind = onhost.Head if rank == 0 else onhost.Follower
        made.append(kind({"rank": rank, "port": port, "members": members}, release, peer_s))
        made[-1].open()
        return made[-1]

    yield one
    for peers in made:
        peers.close("the test is over")
        if getattr(peers, "listener", None):
            peers.listener.close()


def together(make: Make, **words: Any) -> tuple[Any, Any]:
    head, follower = make(0, **words), make(1, **words)
    eventually(head.go)
    eventually(follower.go)
    return head, follower


def test_nobody_starts_before_all_are_there(make: Make) -> None:
    head = make(0)
    assert not head.go()
    assert head.waits_for() == "waiting for rank 1 (h1, 127.0.0.2)"
    follower = make(1)
    assert not follower.go()
    eventually(head.go)
    eventually(follower.go)
    assert head.generation == follower.generation > 0
    assert head.lost() == follower.lost() == ""


def test_the_head_tells_when_the_group_serves(make: Make) -> None:
    head, follower = together(make)
    head.state = "serving"
    eventually(lambda: follower.head_state == "serving")


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_goodbye_is_heard_with_its_reason(make: Make, leaver: int) -> None:
    ends = together(make)
    ends[leaver].close("its engine ended (1)")
    other = ends[1 - leaver]
    host = f"h{leaver}, 127.0.0.{leaver + 1}"
    assert eventually(other.lost) == f"rank {leaver} ({host}): its engine ended (1)"


def test_a_broken_connection_is_a_lost_rank(make: Make) -> None:
    head, follower = together(make)
    follower.lines[0].sock.shutdown(socket.SHUT_RDWR)
    assert "rank 1 (h1, 127.0.0.2): " in eventually(head.lost)
    assert eventually(follower.lost)


def test_silence_is_a_lost_rank(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    head, follower = together(make, peer_s=0.3)
    monkeypatch.setattr(onhost.Line, "send", lambda _self, **_words: None)
    # Whoever notices first closes the connection.
    assert any("no sign of life" in eventually(end.lost) for end in (head, follower))


def test_another_release_is_named_on_both_sides_and_mends_itself(make: Make) -> None:
    head, old = make(0, "r2"), make(1, "r1")
    said = "rank 1 (h1, 127.0.0.2) has release r1, rank 0 has r2"
    eventually(lambda: said in head.waits_for())
    eventually(lambda: said in old.waits_for())
    assert not head.go()
    assert head.misfit_for()[1] == said
    old.close("it was stopped")
    new = make(1, "r2")
    eventually(head.go)
    eventually(new.go)
    assert head.misfit_for() == (0.0, "")


def test_a_rank_that_starts_anew_ends_the_group_first(make: Make) -> None:
    head, first = together(make)
    first.ended.set()  # it lives on, and another process of its rank comes
    make(1)
    assert "it started anew" in eventually(head.lost)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b'{"hello": 7, "release": "r1"}\n', b"[1]\n"])
def test_a_member_that_talks_nonsense_is_no_rank(make: Make, said: bytes) -> None:
    head = make(0)
    eventually(lambda: head.listener)
    with socket.create_connection(head.listener.getsockname(), 5, ("127.0.0.2", 0)) as s:
        s.sendall(said)
        eventually(lambda: s.recv(100) == b"" or True)
    assert head.absent()


def test_a_stranger_is_refused(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    head = make(0)
    eventually(lambda: head.listener)
    with socket.create_connection(head.listener.getsockname(), 5, ("127.0.0.9", 0)) as s:
        s.sendall(b'{"hello": 1, "release": "r1"}\n')
        s.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert s.recv(10) == b""
    assert head.absent()
    assert "refused a connection from 127.0.0.9" in capsys.readouterr().out
