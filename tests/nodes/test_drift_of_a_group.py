"""`invoke drift` over hosts that serve as one: against each other, by the same rules as the doctor's."""

from typing import Any

import pytest

from checks.facts import HostFacts
from provision.drift import groups_in

MEMBERS = [{"rank": n, "host": h, "interface": "eth0"} for n, h in enumerate(("a", "b"))]


def host(name: str, rank: int, release: str = "r1", **tree: Any) -> tuple[HostFacts, dict[str, Any]]:
    eyas = {"current": {"big": release}, "releases": [{"id": release}]}
    group = {"rank": rank, "members": MEMBERS}
    return HostFacts(name, 1.0, {"eyas": eyas, **tree}), {"big": {"release": release, "group": group}}


def driver(version: str) -> dict[str, Any]:
    return {"driver": {"module_version": version}}


def test_two_hosts_are_compared_though_no_majority_can_tell_who_is_right() -> None:
    (group,) = groups_in([host("b", 1, "r2", **driver("570.1")), host("a", 0, **driver("565.9"))])
    assert (group["deployment"], group["hosts"], group["unseen"]) == ("big", ["a", "b"], [])
    assert group["differences"] == [
        "b: the ranks serve different releases of big: release r2 here, r1 on a",
        "b: 570.1 here, 565.9 on a",
    ]


def test_equal_hosts_do_not_differ() -> None:
    assert groups_in([host("a", 0), host("b", 1)])[0]["differences"] == []


def test_half_a_group_says_who_was_not_looked_at() -> None:
    (group,) = groups_in(
        [host("a", 0), (HostFacts("c", 1.0, {}), {"small": {"release": "x", "group": None}})]
    )
    assert group["unseen"] == ["b: not among the hosts looked at"]
    assert group["differences"] == []


@pytest.mark.parametrize("group", [7, {}, {"rank": 0, "members": 5}, {"rank": 0, "members": [{"host": "a"}]}])
def test_a_release_that_somebody_edited_is_no_group(group: object) -> None:
    assert groups_in([(HostFacts("a", 1.0, {}), {"big": {"release": "x", "group": group}})]) == []
