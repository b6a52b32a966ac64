"""The planner against real starts: predicted and measured side by side, with the error of each number."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.planner.plan import plan
from checks.planner.result import Plan
from checks.planner.scenario import Scenario
from checks.planner.units import GIB, MIB
from inventory.errors import InventoryError
from inventory.jsonfile import read_json

__all__ = ["PEAK_GIB", "TOKENS", "WEIGHTS", "Row", "compare", "load_rows"]

#: What the planner promises on rows like these.
WEIGHTS, TOKENS, PEAK_GIB = 0.01, 0.03, 1.0

#: Causes that no memory plan can see: they depend on the host, not on sizes.
_HOST_CAUSES = frozenset({"tp-custom-allreduce"})


@dataclass(frozen=True)
class Row:
    """One start. Errors are predicted minus measured: fractions for weights and tokens, GiB for the peak."""

    name: str
    plan: Plan
    measured: Mapping[str, Any]
    weights_error: float | None
    tokens_error: float | None
    peak_error: float | None
    start_right: bool | None

    @property
    def within(self) -> bool:
        """True when nothing that was measured is missed by more than the promise."""
        return (
            abs(self.weights_error or 0) <= WEIGHTS
            and abs(self.tokens_error or 0) <= TOKENS
            and abs(self.peak_error or 0) <= PEAK_GIB
            and self.start_right is not False
        )

    def to_json(self) -> dict[str, Any]:
        predicted = self.plan.to_json()
        keys = ("model_loading_gib", "available_kv_gib", "kv_tokens", "device_peak_gib", "starts", "reason")
        return {
            "name": self.name,
            "predicted": {k: predicted[k] for k in keys},
            "measured": dict(self.measured),
            "weights_error": _rounded(self.weights_error),
            "tokens_error": _rounded(self.tokens_error),
            "peak_error_gib": _rounded(self.peak_error),
            "start_right": self.start_right,
            "within": self.within,
        }


def load_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a measurement file: a list, or an object with ``rows``. Raises InventoryError otherwise."""
    data = read_json(path, "measurements")
    rows = data.get("rows") if isinstance(data, dict) else data
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise InventoryError(f"{path} holds no measurement rows")
    return rows


def compare(row: Mapping[str, Any]) -> Row:
    """Plan one row's inputs and set the result beside what was measured."""
    made = plan(Scenario.from_mapping(row, source=str(row.get("id") or "row")))
    result = row.get("result") or {}
    used = result.get("device_used_mib_after_start")
    return Row(
        name=str(row.get("id") or ""),
        plan=made,
        measured=result,
        weights_error=_relative(made.weights, result.get("model_loading_gib"), GIB),
        tokens_error=_relative(made.kv_tokens, result.get("kv_tokens"), 1),
        peak_error=_peak_error(made, used),
        start_right=_start_right(made, result),
    )


def _relative(predicted: int | None, measured: float | None, unit: int) -> float | None:
    if predicted is None or not measured:
        return None
    return predicted / (measured * unit) - 1


def _peak_error(made: Plan, used: Any) -> float | None:
    if made.device_peak is None or not used:
        return None
    return (made.device_peak - int(max(used)) * MIB) / GIB


def _start_right(made: Plan, result: Mapping[str, Any]) -> bool | None:
    started, reason = result.get("started"), result.get("reason")
    if started is None or reason in _HOST_CAUSES:
        return None
    return made.starts == started and (started or reason is None or made.reason == reason)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
