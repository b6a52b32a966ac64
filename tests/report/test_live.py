"""`invoke report`: what it writes when hosts answer, when they don't, and what its exit code says."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from checks.bench.model import BenchResult
from checks.facts import HostFacts
from inventory.errors import HostUnreachable, UsageError
from inventory.model import Host
from provision import reporting
from provision.bench.store import keep
from provision.looking import Seen
from provision.run import Flags
from provision.shell import Shell
from tests.report import making


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


LOST = Host(name="gpu09", address="192.0.2.9")


@contextmanager
def nobody(host: Host) -> Iterator[Shell]:
    raise HostUnreachable("no route", host=host.name, hint=f"ssh {host.address}")
    yield


def test_a_host_that_gives_no_answer_is_in_the_report(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "r.html"
    code = reporting.report([LOST], Flags(as_json=True), out=str(out), scope="gpu09", connect=nobody)
    assert code == 3
    tree = json.loads(capsys.readouterr().out)
    assert tree["unreachable"] == [{"host": "gpu09", "error": "no route", "hint": "ssh 192.0.2.9"}]
    page = out.read_text(encoding="utf-8")
    assert "no route; next: ssh 192.0.2.9" in page
    assert "0 of 1 host serving" in page
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("documents", "code"),
    [
        ({"s": making.status() | {"unreachable": []}}, 4),
        ({"s": making.status()}, 3),
        ({"s": {"schema": 1, "hosts": [making.row("gpu01")], "unreachable": []}}, 0),
        ({"d": making.doctor()}, 4),
        ({"b": making.bench()}, 0),
    ],
)
def test_the_exit_code_says_what_is_in_it(tmp_path: Path, documents: dict[str, Any], code: int) -> None:
    for name, document in documents.items():
        making.save(tmp_path / f"{name}.json", document)
    assert reporting.report([], Flags(), folder=str(tmp_path), out=str(tmp_path / "r.html")) == code


def test_saved_benches_join_live_hosts(tmp_path: Path, capsys: Any) -> None:
    making.save(tmp_path / "b.json", making.bench())
    reporting.report(
        [LOST], Flags(as_json=True), folder=str(tmp_path), out=str(tmp_path / "r.html"), connect=nobody
    )
    tree = json.loads(capsys.readouterr().out)
    assert len(tree["benches"]) == 1
    assert [s["kind"] for s in tree["sources"]] == ["bench", "status, doctor, drift, facts, plan, review"]


def test_benches_made_from_this_machine_join(tmp_path: Path, capsys: Any) -> None:
    for host in ("gpu09", "elsewhere"):
        keep(BenchResult.model_validate(making.bench() | {"host": host}))
    reporting.report([LOST], Flags(as_json=True), out=str(tmp_path / "r.html"), connect=nobody)
    tree = json.loads(capsys.readouterr().out)
    assert [b["host"] for b in tree["benches"]] == ["gpu09"]


@pytest.mark.parametrize("name", ["absent/r.html", ""])
def test_a_place_that_cannot_be_written_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "from").mkdir()
    making.save(tmp_path / "from" / "b.json", making.bench())
    with pytest.raises(UsageError, match="--out"):
        reporting.report([], Flags(), folder=str(tmp_path / "from"), out=str(tmp_path / name))
    assert [p.name for p in tmp_path.iterdir()] == ["from"]


def test_a_release_that_does_not_read_is_no_plan() -> None:
    facts = HostFacts("h", 1.0, {})
    host = Host(name="h", address="h")
    odd = Seen(
        "eyas-x.service", {"release": {"settings": {"engine": 7}}, "configs": {"target": making.CONFIG}}
    )
    plan = reporting.plan_of(host, facts, [odd])
    assert plan is not None
    assert plan["why"]
    assert reporting.plan_of(host, facts, []) is None
    two = reporting.plan_of(host, facts, [odd, odd])
    assert two is not None
    assert "share the cards" in two["why"]
