"""A host that is gone in the middle of a group's switch: noticed, not waited for, told."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from inventory.errors import ChangeFailed, EyasError, HostUnreachable, RolledBack
from provision.nodes import switch
from provision.nodes.switch import GroupSwitch, side_by_side
from provision.shell import Result


@dataclass
class Links:
    """Host b falls silent, or only its connection breaks; a start on a goes on until it is halted."""

    silent: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    halted: dict[str, threading.Event] = field(default_factory=dict)
    closed: dict[str, threading.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.halted = {n: threading.Event() for n in "ab"}
        self.closed = {n: threading.Event() for n in "ab"}

    def answers(self, name: str) -> bool:
        return name not in self.silent

    def gone(self, name: str) -> bool:
        return name in self.away

    def let_go(self, name: str) -> None:
        self.closed[name].set()

    def halt(self, name: str) -> None:
        self.halted[name].set()


Work = Callable[[], None]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "ASK_S", 0.01)


def waits(event: threading.Event, error: EyasError) -> Work:
    def work() -> None:
        assert event.wait(5)
        raise error

    return work


def run(links: Links, a: Work, b: Work) -> tuple[dict[str, EyasError], list[str], list[str]]:
    """Errors, what was told, what was put back."""
    told, back = list[str](), list[str]()
    both = GroupSwitch(["a", "b"], links, lambda name, text: told.append(f"{name} {text}"))
    errors = side_by_side(
        {
            "a": lambda: both.apply("a", lambda _: a(), back.append),
            "b": lambda: both.apply("b", lambda _: b(), back.append),
        }
    )
    return errors, told, back


LOST = HostUnreachable("the connection was lost", host="b")
BACK = RolledBack("release new did not become ready: killed\nthe former release is back in place", host="a")


def test_a_silent_host_is_let_go_and_the_other_put_back() -> None:
    links = Links(silent={"b"})
    errors, told, back = run(links, waits(links.halted["a"], BACK), waits(links.closed["b"], LOST))
    assert isinstance(errors["a"], RolledBack)
    assert errors["a"].message == "the group lost b in the switch: the former release is back in place"
    assert isinstance(errors["b"], HostUnreachable)
    assert "gone in the middle of the switch" in errors["b"].message
    assert "run the same command again" in errors["b"].hint
    assert any(t.startswith("a b is gone: not waiting for it") for t in told)
    assert back == []


def test_a_broken_connection_to_a_host_that_lives_ends_no_switch() -> None:
    links = Links()

    def lose() -> None:
        raise LOST

    errors, told, back = run(links, lambda: None, lose)
    assert (list(errors), told, back) == (["b"], [], [])
    assert not links.halted["a"].is_set()


def test_a_host_without_a_former_release_is_a_failed_change() -> None:
    links = Links(away={"b"})

    def lose() -> None:
        raise LOST

    failed = ChangeFailed("release new did not become ready: killed", host="a")
    errors, _, _ = run(links, waits(links.halted["a"], failed), lose)
    assert type(errors["a"]) is ChangeFailed
    assert errors["a"].message == "the group lost b in the switch: there is no former release"


def test_a_rank_that_was_through_before_stays() -> None:
    links, through = Links(away={"b"}), threading.Event()
    told = list[str]()
    both = GroupSwitch(["a", "b"], links, lambda name, text: told.append(f"{name} {text}"))

    def lose() -> None:
        assert through.wait(5)
        with both.turn:
            assert both.turn.wait_for(lambda: "a" in both.through, 5)
        raise LOST

    errors = side_by_side(
        {
            "a": lambda: both.apply("a", lambda _: through.set(), told.append),
            "b": lambda: both.apply("b", lambda _: lose(), told.append),
        }
    )
    assert list(errors) == ["b"]
    assert told == ["b gone in the middle of the switch"]
    assert not links.halted["a"].is_set()


def test_one_slow_answer_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    links, answers = Links(), iter([False, True, False, True, False])
    done = threading.Event()

    def answer(_: str) -> bool:
        said = next(answers, None)
        if said is None:
            done.set()
        return said is not False

    monkeypatch.setattr(links, "answers", answer)
    both = GroupSwitch(["a"], links)
    both.apply("a", lambda _: assert_true(done), lambda _: None)
    assert not links.closed["a"].is_set()


def assert_true(event: threading.Event) -> None:
    assert event.wait(5)


class Busy:
    """A host whose earlier switch goes on until it is halted, or for so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.ran = looks, list[str]()

    def run(self, argv: tuple[str, ...], **_: object) -> Result:
        self.ran.append(argv[1] if argv[0] == "flock" else "halt")
        self.looks = 0 if self.ran[-1] in {"halt", "-w"} else self.looks - 1
        return Result(argv, int(self.looks >= 0 and self.ran[-1] == "-n"), "", "", 0)


@pytest.mark.parametrize(
    ("looks", "ran"),
    [
        ({"a": 0, "b": 0}, {"a": {"-n"}, "b": {"-n"}}),
        ({"a": 99, "b": 99}, {"a": {"-n", "-w"}, "b": {"-n", "-w"}}),
        ({"a": 0, "b": 99}, {"a": {"-n"}, "b": {"-n", "halt"}}),
        ({"a": 0, "b": 2}, {"a": {"-n"}, "b": {"-n"}}),
    ],
)
def test_what_a_killed_operator_left_is_waited_for_unless_a_host_is_alone_with_it(
    looks: dict[str, int], ran: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("provision.nodes.switch.time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("provision.nodes.switch.time.sleep", lambda _: None)
    shells = {n: Busy(k) for n, k in looks.items()}
    over = switch.Over(lambda name: shells[name], "big")  # type: ignore[arg-type, return-value]
    switch.settle_together(over, list(shells), lambda _name, _text: None)
    assert {n: set(s.ran) for n, s in shells.items()} == ran
