"""Every real start against its plan, within the promised tolerances."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.planner.truth import PEAK_GIB, TOKENS, WEIGHTS, compare, load_rows
from inventory.errors import InventoryError

ROWS = load_rows(Path(__file__).parent.parent / "data" / "h200" / "measurements.json")


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
def test_weights_tokens_and_peak_are_within_the_promise(row: dict[str, Any]) -> None:
    seen = compare(row)
    assert abs(seen.weights_error or 0) <= WEIGHTS
    assert abs(seen.tokens_error or 0) <= TOKENS
    assert abs(seen.peak_error or 0) <= PEAK_GIB


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
def test_start_and_reason_are_right(row: dict[str, Any]) -> None:
    assert compare(row).start_right is not False


def test_the_rows_measure_something() -> None:
    seen = [compare(row) for row in ROWS]
    assert sum(r.weights_error is not None for r in seen) >= 24
    assert sum(r.tokens_error is not None for r in seen) >= 21
    assert sum(r.peak_error is not None for r in seen) >= 17
    assert sum(r.start_right is True for r in seen) >= 26


def test_a_wrong_number_is_not_within(tmp_path: Path) -> None:
    row = json.loads(json.dumps(ROWS[0]))
    row["result"]["model_loading_gib"] *= 1.02
    assert not compare(row).within
    row = json.loads(json.dumps(ROWS[0]))
    row["result"]["started"], row["result"]["reason"] = False, "oom-weights-load"
    assert compare(row).start_right is False


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 3}', "[1]", "not json"])
def test_a_file_without_rows_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(InventoryError):
        load_rows(path)
