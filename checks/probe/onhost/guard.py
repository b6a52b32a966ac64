"""One NVML call at a time, each guarded: a card or driver that lacks one answers all the others."""

import os

from .base import Look, missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 3, 4, 13


def gone(answer: "Any") -> bool:
    return isinstance(answer, dict) and set(answer) == {"missing"}


class Guard:
    def __init__(self, look: Look, nvml: "Any") -> None:
        self.look = look
        self.nvml = nvml
        self.asking = "the driver"

    def ask(self, call: str, *args: "Any") -> "Any":
        """One guarded call: a value, or why this card or driver has none."""
        self.look.note(f"{call} of {self.asking}")
        try:
            answer = getattr(self.nvml, call)(*args)
        except Exception as e:
            return missing(self._why(e))
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer

    def part(self, pick: "Callable[[Any], Any]", call: str, *args: "Any") -> "Any":
        answer = self.ask(call, *args)
        return answer if gone(answer) else pick(answer)

    def first(self, *calls: "Any") -> "Any":
        """The first spelling of a query this driver knows."""
        answer: Any = missing("not asked")
        for call in calls:
            answer = self.ask(*call)
            if not gone(answer):
                break
        return answer

    def _why(self, error: Exception) -> str:
        value = getattr(error, "value", None)
        known = {
            NOT_SUPPORTED: "not supported by this card",
            FUNCTION_NOT_FOUND: "driver too old for this query",
            NO_PERMISSION: f"not permitted as uid {os.getuid()}",
        }
        if isinstance(error, getattr(self.nvml, "NVMLLibraryMismatchError", ())):
            return "driver too old for this query"
        return known.get(value, str(error) or type(error).__name__) if value is not None else str(error)
