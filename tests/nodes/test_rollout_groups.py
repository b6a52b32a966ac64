"""A group in a rollout: one member, its ranks together; when one fails all go back."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inventory.errors import ChangeFailed, CheckRefused, HostUnreachable
from provision.nodes.switch import GroupSwitch
from provision.rollout.batches import batches
from provision.rollout.groups import GroupCrew, merged
from provision.rollout.plan import Member, Options, Plan
from provision.shell import Result


def part(name: str, state: str = "pending", want: str = "new", former: str | None = "old") -> Member:
    host = {"name": name, "address": name, "groups": (), "vars": {}}
    return Member(host, {"name": "big"}, state, want=want, former=former, weight_bytes=5, changes=("serve",))


class Quiet:
    """A host on which no switch goes on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, argv: tuple[str, ...], **_: Any) -> Result:
        assert argv[0] == "flock"
        return Result(argv, 0, "", "", 0)

    def answers(self, *, within: float) -> bool:
        return within > 0


class Crew:
    """A HostCrew whose hosts serve at once, except those that ``fails`` says."""

    def __init__(self, **fails: Callable[[str], None]) -> None:
        self.fails, self.calls = fails, list[tuple[str, str]]()
        self.mutex = threading.Lock()
        self.told: list[tuple[str, str]] = []

    def take(self, host: Any) -> None:
        assert (host.name, "old") not in self.calls

    def say(self, name: str, text: str) -> None:
        self.told.append((name, text))

    def shell(self, host: Any) -> Any:
        return Quiet(host.name)

    def serve(self, member: Member, release: str, on_line: Any = None) -> None:
        with self.mutex:
            self.calls.append((member.name, release))
        if release == "new" and member.name in self.fails:
            if on_line:
                on_line("eyas-failed abc")
            self.fails[member.name](member.name)


def test_a_group_is_one_member_with_all_its_bytes_and_titles() -> None:
    group = merged([part("a"), part("b", "prepare")])
    assert (group.name, group.state, group.weight_bytes) == ("a", "pending", 10)
    assert group.changes == ("a: serve", "b: serve")
    assert [p.name for p in group.parts()] == ["a", "b"]
    assert [[m.name for m in b] for b in batches([group, part("c")], "1", "1")] == [["a"], ["c"]]


def test_the_plan_keeps_the_ranks() -> None:
    plan = Plan("1", "rollout", "f", (merged([part("a"), part("b")]),), Options())
    assert Plan.from_json(plan.to_json(), source="f") == plan


@pytest.mark.parametrize("other", [part("b", want="else"), part("b", former="third")])
def test_ranks_that_would_not_move_as_one_are_refused(other: Member) -> None:
    with pytest.raises(CheckRefused, match="ranks-differ: a goes from old to new, b from"):
        merged([part("a"), other])


def test_all_ranks_serve() -> None:
    crew = Crew()
    GroupCrew(crew).serve(merged([part("a"), part("b")]), "new")  # type: ignore[arg-type]
    assert sorted(crew.calls) == [("a", "new"), ("b", "new")]


def test_a_rollback_has_nothing_to_prepare() -> None:
    """Its members know a name and a release, no whole deployment."""
    back = replace(merged([part("a"), part("b")]), changes=())
    GroupCrew(Crew()).prepare(back)  # type: ignore[arg-type]


def test_a_rank_that_was_ready_goes_back_with_the_one_that_failed() -> None:
    def fail(name: str) -> None:
        raise ChangeFailed("no memory", host=name)

    crew = Crew(b=fail)
    with pytest.raises(ChangeFailed, match="b: no memory"):
        GroupCrew(crew).serve(merged([part("a"), part("b")]), "new")  # type: ignore[arg-type]
    assert sorted(crew.calls) == [("a", "new"), ("a", "old"), ("b", "new")]


def test_a_connection_lost_in_the_switch_rolls_nobody_back() -> None:
    def lose(name: str) -> None:
        raise HostUnreachable("the link is gone", host=name)

    switch, told = GroupSwitch(["a", "b"]), list[str]()

    def lost() -> None:
        with pytest.raises(HostUnreachable):
            switch.apply("b", lambda _: lose("b"), told.append)

    thread = threading.Thread(target=lost)
    thread.start()
    switch.apply("a", lambda _: None, told.append)
    thread.join()
    assert told == []
