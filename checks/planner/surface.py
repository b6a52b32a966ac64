"""What `invoke plan` prints and with which exit code it ends: 0 fits or tight, 4 does not fit."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from checks.planner.plan import plan
from checks.planner.report import show_plan, show_truth
from checks.planner.result import Plan
from checks.planner.scenario import load_scenario
from checks.planner.truth import compare, load_rows
from inventory.errors import UsageError

__all__ = ["scenario", "truth"]


def scenario(path: str, *, as_json: bool) -> int:
    """Plan one scenario file. A start that fails is an answer, not an error: exit 0 with --json."""
    if not path:
        raise UsageError(
            "nothing to plan", hint="give --deployment NAME with --host or --gpu, or --scenario FILE"
        )
    made = plan(load_scenario(Path(path)))
    _print(made, as_json=as_json)
    return 0 if as_json or made.starts else 4


def truth(path: Path, *, as_json: bool) -> int:
    """Every measured start beside its plan; 4 when one is missed by more than promised."""
    rows = [compare(row) for row in load_rows(path)]
    if as_json:
        _dump({"rows": [r.to_json() for r in rows], "within": all(r.within for r in rows)})
    else:
        show_truth(rows, Console(width=None if Console().is_terminal else 200))
    return 0 if all(r.within for r in rows) else 4


def _print(made: Plan, *, as_json: bool) -> None:
    if as_json:
        _dump(made.to_json())
    else:
        show_plan(made, Console())


def _dump(document: dict[str, Any]) -> None:
    print(json.dumps({"schema": 1, **document}, indent=1))
