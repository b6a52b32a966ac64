"""Reading numbers out of a decoded JSON object, with an error that names the file and the field."""

from collections.abc import Mapping
from typing import Any

from inventory.errors import InventoryError

__all__ = ["Fields"]


class Fields:
    """One object; ``source`` names it in errors. An absent or null field is None, a wrong one an error."""

    def __init__(self, row: Mapping[str, Any], source: str) -> None:
        self.row = row
        self.source = source

    def optional(self, name: str, low: float, high: float) -> float | None:
        value = self.row.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value <= high:
            raise InventoryError(f"{self.source}: {name} is {value!r}, expected a number in ({low}, {high}]")
        return float(value)

    def number(self, name: str, low: float, high: float) -> float:
        value = self.optional(name, low, high)
        if value is None:
            raise InventoryError(f"{self.source} has no {name}")
        return value

    def whole(self, name: str) -> int | None:
        value = self.row.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise InventoryError(f"{self.source}: {name} is {value!r}, expected a positive whole number")
        return value
