"""JSON files that a person names: whatever is wrong with one is an error that names it."""

import json
from pathlib import Path
from typing import Any

from inventory.errors import InventoryError

__all__ = ["decode_json", "read_json"]


def read_json(path: Path, what: str) -> Any:
    """The decoded file. Raises InventoryError when it can't be read as JSON."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise InventoryError(f"cannot read {what} {path}: {reason}", hint="check the path") from e
    return decode_json(text, f"cannot read {what} {path}")


def decode_json(text: str, failed: str) -> Any:
    """``failed`` begins the error's message."""
    try:
        return json.loads(text)
    except RecursionError as e:
        raise InventoryError(f"{failed}: nested too deeply") from e
    except ValueError as e:
        raise InventoryError(f"{failed}: {e}") from e
