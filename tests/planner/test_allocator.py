"""The allocator's rules, one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.planner.allocator import Allocator, OutOfMemory
from checks.planner.units import MIB


def test_small_tensors_are_not_counted_as_segments() -> None:
    a = Allocator()
    a.take("x", MIB - 512)
    assert (a.reserved, a.live) == (0, MIB - 512)


def test_medium_tensors_share_a_segment_and_large_ones_do_not() -> None:
    a = Allocator()
    a.take("x", 4 * MIB)
    a.take("y", 4 * MIB)
    assert a.reserved == 20 * MIB
    a.take("z", 33 * MIB + 1)
    assert a.reserved == 20 * MIB + 34 * MIB


def test_a_freed_block_serves_what_fits_into_it() -> None:
    a = Allocator()
    a.take("x", 100 * MIB)
    a.drop("x")
    a.take("y", 40 * MIB)
    a.take("z", 60 * MIB)
    assert a.reserved == 100 * MIB
    a.take("w", 12 * MIB)
    assert a.reserved == 112 * MIB


def test_neighbours_merge_when_they_are_freed() -> None:
    a = Allocator()
    a.take("x", 100 * MIB)
    a.drop("x")
    for name in "abc":
        a.take(name, 30 * MIB)
    a.drop("a", "c", "b")
    a.take("x", 100 * MIB)
    assert a.reserved == 100 * MIB


def test_replacing_needs_both_at_once() -> None:
    a = Allocator()
    a.take("x", 50 * MIB)
    a.replace("x", 50 * MIB)
    assert (a.live, a.peak_live, a.peak_at) == (50 * MIB, 100 * MIB, "x (new)")


def test_cached_segments_go_back_before_it_fails() -> None:
    a = Allocator(limit=110 * MIB)
    a.take("x", 60 * MIB)
    a.drop("x")
    a.take("y", 100 * MIB)
    assert a.reserved == 100 * MIB
    with pytest.raises(OutOfMemory) as e:
        a.take("z", 20 * MIB)
    assert e.value.tensor == "z"


def test_dropping_what_is_not_held_does_nothing() -> None:
    a = Allocator()
    a.drop("nothing")
    assert a.live == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300)), max_size=60))
def test_reserved_always_covers_what_is_live(steps: list[tuple[int, int]]) -> None:
    a = Allocator()
    for slot, mib in steps:
        name = str(slot)
        if name in a.held:
            a.drop(name)
        else:
            a.take(name, mib * MIB)
        assert a.reserved >= a.live
    a.drop(*list(a.held))
    a.empty_cache()
    assert (a.live, a.reserved) == (0, 0)
