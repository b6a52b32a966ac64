"""Batches, the journal, hooks, outliers, what prune keeps."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.facts import HostFacts
from inventory.errors import ChangeFailed, EyasError, InventoryError, UsageError
from inventory.model import Host
from provision.drift import outliers, sentence, traits
from provision.prune import superfluous
from provision.rollout.batches import batches, check_sizes
from provision.rollout.hooks import check_hook, run_hook
from provision.rollout.plan import Member, Options, Plan, host_words
from provision.rollout.record import Record, newest_unfinished


@pytest.mark.parametrize(
    ("canary", "serial", "sizes"),
    [
        ("1", "25%", [1, 3, 3, 3]),
        ("0", "100%", [10]),
        ("10%", "1,2,50%", [1, 1, 2, 5, 1]),
        ("20", "1", [10]),
    ],
)
def test_batch_sizes(canary: str, serial: str, sizes: list[int]) -> None:
    assert [len(b) for b in batches(range(10), canary, serial)] == sizes


@given(st.lists(st.integers(), max_size=60), st.integers(0, 70), st.integers(1, 100))
def test_every_host_has_one_turn(items: list[int], canary: int, percent: int) -> None:
    made = batches(items, str(canary), f"{percent}%")
    assert [x for b in made for x in b] == items
    assert all(made)


@pytest.mark.parametrize(
    ("canary", "serial"),
    [("x", "1"), ("1", "0"), ("1", "0%"), ("1", "101%"), ("-1", "1"), ("1", ""), ("1", "1,")],
)
def test_wrong_sizes_are_refused_before_anything(canary: str, serial: str) -> None:
    with pytest.raises(UsageError):
        check_sizes(canary, serial)


def plan(**member: Any) -> Plan:
    words: dict[str, Any] = {"state": "pending", "want": "b", "former": "a", **member}
    return Plan(
        "r1",
        "rollout",
        "fleet",
        (Member({"name": "gpu01", "address": "x"}, {"name": "d"}, **words),),
        Options(),
    )


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    made = plan(changes=("one", "two"), notes=("n",))
    assert Record(Record.new(made, tmp_path).path).plan == made


def test_a_line_cut_short_by_a_crash_is_dropped(tmp_path: Path) -> None:
    record = Record.new(plan(), tmp_path)
    record.write("switching", host="gpu01")
    with record.path.open("a") as f:
        f.write('{"event": "do')
    again = Record(record.path)
    assert again.in_flight == ["gpu01"]
    again.write("done", host="gpu01")
    assert Record(record.path).phases == {"gpu01": "done"}


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    record = Record.new(plan(), tmp_path)
    with record.path.open("a") as f:
        f.write("garbage\n")
    record.write("end")
    with pytest.raises(UsageError, match="line 2"):
        Record(record.path)


def test_lost_leaves_a_host_where_it_was(tmp_path: Path) -> None:
    record = Record.new(plan(), tmp_path)
    record.write("switching", host="gpu01")
    record.write("lost", host="gpu01")
    record.write("end")
    assert not record.finished
    assert newest_unfinished("fleet", tmp_path) is not None
    assert newest_unfinished("another fleet", tmp_path) is None


def test_the_newest_rollout_is_newest_by_name_whatever_the_clock_says(tmp_path: Path) -> None:
    """A clock that was set back, or a zone that changed, must not hide the one to resume."""
    (tmp_path / "20991231T235959-ffff.jsonl").touch()
    first = Record.new_id(tmp_path)
    assert first.startswith("21000101T000000-")
    (tmp_path / f"{first}.jsonl").touch()
    assert Record.new_id(tmp_path) > first
    assert Record.new_id(tmp_path / "empty") < "2099"


def test_a_plan_of_another_eyas_is_refused() -> None:
    with pytest.raises(InventoryError, match="another eyas"):
        Plan.from_json({"schema": 99}, source="x")


def test_no_password_goes_into_the_journal(tmp_path: Path) -> None:
    secret = {
        "ansible_become_pass": "canary-s3cret",
        "ansible_password": "canary-s3cret",
        "my_token": "canary-s3cret",
    }
    host = Host(name="gpu01", address="x", vars={**secret, "ansible_ssh_private_key_file": "/k"})
    made = Plan("r1", "rollout", "fleet", (Member(host_words(host), {}, "pending"),), Options())
    text = Record.new(made, tmp_path).path.read_text()
    assert "s3cret" not in text
    assert "/k" in text


@pytest.mark.parametrize("command", ["{nonsense}", "echo 'open", "echo {0}"])
def test_wrong_hooks_are_refused(command: str) -> None:
    with pytest.raises(UsageError):
        check_hook(command, "--drain")


def test_hooks_run_without_a_shell_and_tell_their_last_words(tmp_path: Path) -> None:
    host = Host(name="gpu01; touch x", address="10.0.0.1")
    seen = tmp_path / "seen"
    run_hook(f"sh -c 'echo \"$0 $1 $EYAS_PORT\" >{seen}' {{host}} {{address}}", host, "d", 8000)
    assert seen.read_text() == "gpu01; touch x 10.0.0.1 8000\n"
    with pytest.raises(ChangeFailed, match="no such backend"):
        run_hook("sh -c 'echo no such backend >&2; exit 3'", host, "d", 8000)
    with pytest.raises(EyasError, match="not-a-program"):
        run_hook("not-a-program", host, "d", 8000)


def test_one_of_twenty_differs() -> None:
    fleet = {f"gpu{n:02}": {"driver": "580.95", "kernel": "6.8"} for n in range(1, 21)}
    fleet["gpu07"] = {"driver": "570.172", "kernel": "6.8"}
    found = outliers(fleet)
    assert list(found) == ["gpu07"]
    expected = "gpu07 differs from the other 19 in: driver 570.172 (others 580.95)"
    assert sentence("gpu07", found["gpu07"]) == expected


@pytest.mark.parametrize("values", [["a", "b"], ["a", "a", "b", "b"], ["a", "b", "c"], ["a"]])
def test_without_a_majority_nobody_is_an_outlier(values: list[str]) -> None:
    assert outliers({f"h{n}": {"driver": v} for n, v in enumerate(values)}) == {}


def test_what_nobody_could_read_is_no_trait() -> None:
    facts = HostFacts("h", 0.0, {"driver": {"module_version": {"missing": "no"}}, "os": {"kernel": "6.8"}})
    assert traits(facts, {}) == {"kernel": "6.8"}


def release(rid: str, role: str, lock: str, weights: list[str], **more: Any) -> dict[str, Any]:
    return {
        "deployment": "d",
        "id": rid,
        "role": role,
        "complete": True,
        "lock": lock,
        "weights": weights,
        **more,
    }


def test_prune_keeps_what_current_and_previous_need() -> None:
    base = "/var/lib/eyas/weights/m/"
    facts = HostFacts(
        "h",
        0.0,
        {
            "eyas": {
                "envs": [{"id": e} for e in ("e1", "e2", "e3")],
                "weights": [{"id": f"m/{c}"} for c in "123"],
            }
        },
    )
    found = [
        release("r3", "current", "e3", [base + "3"]),
        release("r2", "previous", "e2", [base + "3"]),
        release("r1", "", "e1", [base + "1"]),
    ]
    assert superfluous(facts, found) == [
        "/var/lib/eyas/releases/r1", "/opt/eyas/envs/e1", base + "1", base + "2"
    ]  # fmt: skip
    unknown = [found[0], found[2]]
    assert superfluous(facts, unknown) == ["/opt/eyas/envs/e2", base + "2"]


def test_the_journal_is_one_object_a_line(tmp_path: Path) -> None:
    record = Record.new(plan(), tmp_path)
    record.write("batch", number=1)
    assert [json.loads(line)["event"] for line in record.path.read_text().splitlines()] == ["plan", "batch"]
