"""`plan --host`: one plan a host, and no guess where nobody could look."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from checks.facts import HostFacts
from checks.planner.surface import Ask
from checks.planner.units import MIB
from inventory.errors import HostUnreachable
from inventory.model import Deployment, Host
from provision import planning
from provision.run import Flags
from tests.planner.test_surface import meta, wanted

CARDS = {"big": 81559 * MIB, "small": 15360 * MIB}


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    """Three hosts: a large card, a small one, one that does not answer."""

    def probe(shell: Any) -> HostFacts:
        gpus = [{"name": "NVIDIA H100", "memory_total": CARDS[shell.name], "memory_used": 0}]
        return HostFacts(shell.name, 0.0, {"gpus": gpus})

    def chosen(host: Host, name: str | None) -> Deployment:
        return wanted(name=name or host.name)

    monkeypatch.setattr("provision.observe.probe", probe)
    monkeypatch.setattr(planning, "deployment_for", chosen)
    return [Host(name=n, address="192.0.2.1") for n in ("big", "small", "lost")]


@contextlib.contextmanager
def connect(host: Host) -> Iterator[Any]:
    if host.name == "lost":
        raise HostUnreachable("no answer", hint="is it on?")
    yield host


def run(hosts: list[Host], *, as_json: bool = True) -> int:
    return planning.plan_hosts(hosts, "coder", Ask(), meta, Flags(as_json=as_json), connect)


def test_one_host_is_one_document(hosts: list[Host], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(hosts[:1]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["host"], document["starts"]) == ("big", True)


def test_a_small_card_does_not_hide_behind_a_large_one(
    hosts: list[Host], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(hosts[:2]) == 4
    document = json.loads(capsys.readouterr().out)
    assert [h["starts"] for h in document["hosts"]] == [True, False]


def test_a_lost_host_is_named_and_the_others_are_planned(
    hosts: list[Host], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(hosts) == 3
    document = json.loads(capsys.readouterr().out)
    assert len(document["hosts"]) == 2
    assert document["unreachable"] == [{"host": "lost", "error": "no answer", "hint": "is it on?"}]
    assert run(hosts, as_json=False) == 3
    shown = capsys.readouterr()
    assert "big" in shown.out
    assert "lost: no answer" in shown.err
