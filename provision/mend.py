"""`invoke doctor --fix`: from findings to changes."""

from collections.abc import Sequence
from typing import Any

from inventory.errors import UsageError

__all__ = ["mend_hosts"]


def mend_hosts(found: Sequence[Any], *_: Any, **__: Any) -> int:
    raise UsageError("--fix is not in this version", hint="make the changes that invoke doctor names")
