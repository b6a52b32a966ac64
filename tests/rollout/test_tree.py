"""The tree: everybody gets it, sources aren't overrun, dead and wrong ones are replaced."""

import threading
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.rollout.tree import Copied, spread

HOSTS = [f"gpu{n:02}" for n in range(1, 21)]


def test_nineteen_hosts_are_served_by_many_sources() -> None:
    given_by: Counter[str] = Counter()
    at_once: Counter[str] = Counter()
    most, lock = [0], threading.Lock()

    def copy(source: str, target: str) -> Copied:
        with lock:
            given_by[source] += 1
            at_once[source] += 1
            most[0] = max(most[0], at_once[source])
        with lock:
            at_once[source] -= 1
        return Copied.OK

    have, missed = spread(HOSTS[:1], HOSTS[1:], copy, fanout=2)
    assert (have, missed) == (set(HOSTS), set())
    assert given_by.total() == 19
    assert most[0] <= 2


def test_a_dead_source_is_replaced() -> None:
    used: list[str] = []

    def copy(source: str, target: str) -> Copied:
        used.append(source)
        return Copied.SOURCE if source == "a" else Copied.OK

    have, missed = spread(["a", "b"], ["c", "d", "e"], copy, fanout=1, forks=1)
    assert (have - {"a"}, missed) == ({"b", "c", "d", "e"}, set())
    assert used.count("a") == 1


def test_a_wrong_copy_is_fetched_again_from_another_source() -> None:
    seen: list[tuple[str, str]] = []

    def copy(source: str, target: str) -> Copied:
        seen.append((source, target))
        return (
            Copied.CORRUPT
            if seen.count((source, target)) == 1 and source == "a" and target == "c"
            else Copied.OK
        )

    _, missed = spread(["a", "b"], ["c"], copy, forks=1)
    assert missed == set()
    assert seen == [("a", "c"), ("b", "c")]


@pytest.mark.parametrize("result", [Copied.CORRUPT, Copied.SOURCE, Copied.TARGET])
def test_it_ends_when_nothing_works(result: Copied) -> None:
    have, missed = spread(["a"], ["b", "c"], lambda *_: result)
    assert (have, missed) == ({"a"}, {"b", "c"})


@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(1, 6))
def test_every_host_is_told_of_once(random: Random, fanout: int, forks: int) -> None:
    choices = [Copied.OK, Copied.OK, Copied.SOURCE, Copied.CORRUPT, Copied.TARGET]
    have, missed = spread(
        HOSTS[:2],
        HOSTS[1:9],
        lambda *_: random.choice(choices),
        fanout=fanout,
        forks=forks,
    )
    assert have | missed == set(HOSTS[:9])
    assert not have & missed
