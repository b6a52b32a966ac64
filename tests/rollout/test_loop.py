"""The loop against a fleet that fails at random and an operator that dies at random.

Whatever happens, each host serves its former release or the new one, and the journal says which.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory.errors import ChangeFailed, EyasError, HostUnreachable
from provision.rollout.ends import Ending
from provision.rollout.gate import Verdict
from provision.rollout.loop import Rollout
from provision.rollout.plan import Member, Options, Plan
from provision.rollout.record import Record, newest_unfinished

OLD, NEW = "old0", "new0"


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


class Died(BaseException):
    """The operator's process ends here."""


@dataclass
class Box:
    """A host: the link, and what runs. ``bad``: releases that come up red; ``dead``: that don't come up."""

    link: str | None = OLD
    active: bool = True
    drained: bool = False
    bad: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    prepared: bool = False
    switches: int = 0


class FakeCrew:
    """``trouble(op, host)`` may raise, before the act and after it."""

    def __init__(self, boxes: dict[str, Box], trouble: Callable[[str, str], None] = lambda *_: None) -> None:
        self.boxes, self.trouble = boxes, trouble
        self.lock = threading.Lock()
        self.log: list[tuple[str, str]] = []

    def _note(self, op: str, m: Member) -> Box:
        with self.lock:
            self.log.append((op, m.name))
        self.trouble(op, m.name)
        return self.boxes[m.name]

    def resolve(self, member: Member) -> Member:
        self._note("resolve", member)
        return make_member(member.name)

    def spread(self, members: list[Member], fleet: list[Member]) -> None:
        pass

    def prepare(self, member: Member) -> None:
        self._note("prepare", member).prepared = True

    def ready(self, member: Member) -> None:
        self._note("ready", member)

    def drain(self, member: Member) -> None:
        self._note("drain", member).drained = True

    def restore(self, member: Member) -> None:
        self._note("restore", member).drained = False

    def serve(self, member: Member, release: str) -> None:
        box = self._note("serve", member)
        box.active = False
        self.trouble("serve-half", member.name)
        box.link, box.active = release, True
        box.switches += 1
        self.trouble("served", member.name)
        if release in box.dead:
            raise ChangeFailed("not ready", host=member.name)

    def gate(self, member: Member, release: str, baseline: str | None) -> Verdict:
        box = self._note("gate", member)
        assert box.link == release
        return Verdict(reasons=("slow",) if release in box.bad else ())

    def withdraw(self, member: Member) -> None:
        box = self._note("withdraw", member)
        box.link, box.active = None, False

    def back(self, member: Member) -> None:
        self._note("back", member)


def make_member(name: str, state: str = "pending", former: str | None = OLD) -> Member:
    return Member({"name": name, "address": name}, {}, state, want=NEW, former=former, baseline=former)


def names(count: int) -> list[str]:
    return [f"gpu{n:02}" for n in range(1, count + 1)]


def start(folder: Path, members: list[Member], **options: object) -> Record:
    plan = Plan(Record.new_id(), "rollout", "fleet", tuple(members), Options(**options))  # type: ignore[arg-type]
    return Record.new(plan, folder)


def run(record: Record, crew: FakeCrew) -> Ending:
    return Rollout(record, crew, lambda *_: None, sleep=lambda _: None).run()


def statuses(ending: Ending) -> dict[str, str]:
    return {name: r.status for name, r in ending.results.items()}


def test_good_rollout_moves_the_canary_first_then_batches(tmp_path: Path) -> None:
    boxes = {n: Box() for n in names(6)}
    crew = FakeCrew(boxes)
    record = start(tmp_path, [make_member(n) for n in boxes], serial="50%")
    ending = run(record, crew)
    assert ending.exit_code == 0
    assert {b.link for b in boxes.values()} == {NEW}
    batches = [e["hosts"] for e in record.events if e["event"] == "batch"]
    assert batches == [["gpu01"], ["gpu02", "gpu03", "gpu04"], ["gpu05", "gpu06"]]
    prepared = max(i for i, (op, _) in enumerate(crew.log) if op == "prepare")
    assert prepared < min(i for i, (op, _) in enumerate(crew.log) if op == "serve")
    assert record.finished


@pytest.mark.parametrize("kind", ["bad", "dead"])
def test_red_canary_is_rolled_back_and_the_others_stay_untouched(tmp_path: Path, kind: str) -> None:
    boxes = {n: Box() for n in names(4)}
    getattr(boxes["gpu01"], kind).add(NEW)
    ending = run(start(tmp_path, [make_member(n) for n in boxes]), FakeCrew(boxes))
    assert ending.exit_code == 6
    assert statuses(ending) == {"gpu01": "rolled-back", **dict.fromkeys(names(4)[1:], "untouched")}
    assert {b.link for b in boxes.values()} == {OLD}
    assert [b.switches for b in boxes.values()] == [2, 0, 0, 0]


def test_former_release_that_is_red_too_is_a_failure(tmp_path: Path) -> None:
    boxes = {"gpu01": Box(bad={OLD, NEW})}
    ending = run(start(tmp_path, [make_member("gpu01")]), FakeCrew(boxes))
    assert (statuses(ending), ending.exit_code) == ({"gpu01": "failed"}, 5)
    assert boxes["gpu01"].link == OLD


def test_a_former_release_that_can_not_be_put_back_hides_no_reason(tmp_path: Path) -> None:
    boxes = {"gpu01": Box(bad={NEW}, dead={OLD})}
    ending = run(start(tmp_path, [make_member("gpu01")]), FakeCrew(boxes))
    assert (statuses(ending), ending.exit_code) == ({"gpu01": "failed"}, 5)
    told = ending.results["gpu01"]
    assert told.why == f"slow; release {OLD} could not be put back: not ready"
    assert "invoke status" in told.hint


def test_first_release_that_fails_leaves_nothing_served(tmp_path: Path) -> None:
    boxes = {"gpu01": Box(link=None, active=False, dead={NEW})}
    ending = run(start(tmp_path, [make_member("gpu01", former=None)]), FakeCrew(boxes))
    assert (statuses(ending), boxes["gpu01"].link) == ({"gpu01": "failed"}, None)


def test_max_fail_counts_over_the_whole_run(tmp_path: Path) -> None:
    boxes = {n: Box() for n in names(5)}
    boxes["gpu02"].bad.add(NEW)
    boxes["gpu04"].bad.add(NEW)
    ending = run(start(tmp_path, [make_member(n) for n in boxes], serial="1", max_fail=2), FakeCrew(boxes))
    assert statuses(ending) == dict(
        zip(names(5), ["done", "rolled-back", "done", "rolled-back", "untouched"], strict=True)
    )


def test_unreachable_hosts_are_tried_again_at_the_end(tmp_path: Path) -> None:
    boxes = {n: Box() for n in names(3)}
    calls: list[str] = []

    def trouble(op: str, host: str) -> None:
        if host == "gpu03" and op == "resolve":
            raise HostUnreachable("no route", host=host)
        calls.append(op)

    members = [make_member("gpu01"), make_member("gpu02", "unreachable"), make_member("gpu03", "unreachable")]
    ending = run(start(tmp_path, members), FakeCrew(boxes, trouble))
    assert statuses(ending) == {"gpu01": "done", "gpu02": "done", "gpu03": "unreachable"}
    assert ending.exit_code == 3


def test_host_that_reboots_during_the_switch_is_waited_for(tmp_path: Path) -> None:
    once: list[str] = []

    def trouble(op: str, host: str) -> None:
        if op == "serve-half" and not once:
            once.append(host)
            raise HostUnreachable("connection lost", host=host)

    boxes = {n: Box() for n in names(2)}
    ending = run(start(tmp_path, [make_member(n) for n in boxes]), FakeCrew(boxes, trouble))
    assert statuses(ending) == dict.fromkeys(names(2), "done")


def test_host_that_stays_away_is_settled_by_the_resume(tmp_path: Path) -> None:
    away = [True]

    def trouble(op: str, host: str) -> None:
        if host == "gpu01" and op in {"served", "back"} and away[0]:
            raise HostUnreachable("gone", host=host)

    boxes = {n: Box() for n in names(2)}
    record = start(tmp_path, [make_member(n) for n in boxes])
    ending = run(record, FakeCrew(boxes, trouble))
    assert (statuses(ending), ending.exit_code) == ({"gpu01": "lost", "gpu02": "untouched"}, 5)
    assert not record.finished
    away[0] = False
    again = newest_unfinished("fleet", tmp_path)
    assert again is not None
    assert statuses(run(again, FakeCrew(boxes, trouble))) == dict.fromkeys(names(2), "done")


def test_a_drain_that_fails_leaves_the_host_untouched(tmp_path: Path) -> None:
    def trouble(op: str, host: str) -> None:
        if op == "drain":
            raise ChangeFailed("the router refuses", host=host)

    boxes = {"gpu01": Box()}
    crew = FakeCrew(boxes, trouble)
    assert statuses(run(start(tmp_path, [make_member("gpu01")]), crew)) == {"gpu01": "failed"}
    assert boxes["gpu01"].switches == 0
    assert ("restore", "gpu01") in crew.log


OPS = ["prepare", "ready", "drain", "serve", "serve-half", "served", "gate", "restore", "back", "withdraw"]
ERRORS: dict[str, Callable[[str], BaseException]] = {
    "unreachable": lambda h: HostUnreachable("lost", host=h),
    "failed": lambda h: ChangeFailed("failed", host=h),
    "died": lambda _: Died(),
}


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_failure_leaves_a_host_in_neither_release(tmp_path: Path, data: st.DataObject) -> None:
    """Random failures, then the operator dies, resumes, dies, ...; in the end nothing goes wrong any more."""
    boxes = {n: Box() for n in names(3)}
    for box in boxes.values():
        box.bad = data.draw(st.sampled_from([set(), {NEW}]))
    calls, quiet = [0], [False]
    faults = data.draw(st.dictionaries(st.integers(1, 60), st.sampled_from(sorted(ERRORS)), max_size=5))

    def trouble(op: str, host: str) -> None:
        calls[0] += 1
        kind = None if quiet[0] else faults.get(calls[0])
        # Putting a host back is what there is when the new release fails: it doesn't fail here, the host may.
        if kind and not (kind == "failed" and op in {"serve-half", "serve", "restore", "gate", "back"}):
            raise ERRORS[kind](host)

    folder = tmp_path / Record.new_id()
    record = start(folder, [make_member(n) for n in boxes], forks=1, max_fail=3)
    for attempt in range(8):
        quiet[0] = attempt == 7
        found = newest_unfinished("fleet", folder)
        if found is None:
            break
        record = found
        try:
            run(record, FakeCrew(boxes, trouble))
        except (Died, EyasError):
            continue
    assert not Record(record.path).in_flight
    phases = Record(record.path).phases
    for name, box in boxes.items():
        assert box.active, (name, phases)
        assert box.link in {OLD, NEW}
        if phases.get(name) == "done":
            assert box.link == NEW
        if phases.get(name) == "rolled-back":
            assert box.link == OLD
