"""The operator's own disk and name: a journal that can't be kept, one that was cut, a user without a name."""

import getpass
import os
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import ChangeFailed, UsageError
from provision.journal import Journal, operator
from provision.rollout.plan import Options, Plan
from provision.rollout.record import Record, newest_unfinished


def plan(number: str) -> Plan:
    return Plan(f"20260101T00000{number}-aaaa", "rollout", "fleet", (), Options())


@pytest.mark.parametrize("place", ["/dev/full", "/proc/nobody/journal.jsonl", "/dev/null/journal.jsonl"])
def test_a_journal_that_cannot_be_kept_is_told_with_the_place(place: str) -> None:
    with pytest.raises(ChangeFailed, match=f"the journal {place} can't be written") as e:
        Journal(Path(place)).write("begin")
    assert "--resume" in e.value.hint


def test_a_disk_that_fills_up_leaves_no_half_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, write = Record.new(plan("1"), tmp_path), os.write
    record.write("begin")
    whole = record.path.read_bytes()

    def full(fd: int, data: bytes) -> int:
        if len(data) > 5:
            return write(fd, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ChangeFailed, match="No space left"):
        record.write("batch", hosts=[])
    assert record.path.read_bytes() == whole
    monkeypatch.undo()
    record.write("batch", hosts=["gpu01"])
    assert [e["event"] for e in Record(record.path).events] == ["plan", "begin", "batch"]


def test_a_journal_without_a_line_is_no_unfinished_rollout(tmp_path: Path) -> None:
    Record.new(plan("1"), tmp_path)
    (tmp_path / "20260102T000000-bbbb.jsonl").touch()
    found = newest_unfinished("fleet", tmp_path)
    assert found
    assert found.plan.id.startswith("20260101")


@pytest.mark.parametrize("text", ["{\n{}\n", '{"event": "begin"}\n', "[]\n"])
def test_a_damaged_journal_says_how_to_go_on_without_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "20260102T000000-bbbb.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as e:
        newest_unfinished("fleet", tmp_path)
    assert f"mv {path} {path}.damaged" in e.value.hint


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no name")])
def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def nameless() -> Any:
        raise error

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert operator() == f"uid {os.getuid()}"
