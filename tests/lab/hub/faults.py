"""What goes wrong, on purpose: rules that match requests, a number of times or always."""

import re
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["Fault", "Faults"]


@dataclass
class Fault:
    """One rule. ``match`` is a regular expression, searched in ``METHOD /path?query``.

    ``times`` is how many more requests it applies to (None: all). ``status`` answers at once instead of
    serving, with ``headers`` and ``message`` (the hub's X-Error-Message); the others spoil the body that is
    served: ``delay`` seconds before the first byte, ``rate`` bytes a second, ``cut_at`` closes the
    connection after so many bytes of this body, ``truncate`` ends the body there with a matching length,
    ``flip_at`` inverts the byte at that offset of the file, ``ignore_range`` sends the whole file.
    """

    match: str
    times: int | None = None
    status: int | None = None
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    rate: float | None = None
    cut_at: int | None = None
    truncate: int | None = None
    flip_at: int | None = None
    ignore_range: bool = False

    def __post_init__(self) -> None:
        re.compile(self.match)
        if self.rate is not None and self.rate <= 0:
            raise ValueError("rate is bytes a second, above 0")

    @classmethod
    def parse(cls, data: dict[str, Any]) -> "Fault":
        """From decoded JSON; an unknown key is a ValueError that names the known ones."""
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(data) - set(known)):
            raise ValueError(f"unknown {', '.join(unknown)}; a fault has {', '.join(known)}")
        if not isinstance(data.get("match"), str):
            raise TypeError('a fault needs "match", a regular expression')
        return cls(**data)


class Faults:
    """The rules in force; the first that matches a request applies to it alone."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, match: str, **what: Any) -> Fault:
        """``faults.add("GET .*model.safetensors", cut_at=12_000_000, times=2)``."""
        fault = Fault.parse({"match": match, **what})
        with self._lock:
            self._rules.append(fault)
        return fault

    def rate_limited(self, match: str, *, seconds: int, times: int | None = 1) -> Fault:
        """A 429 as the hub words it: the RateLimit headers tell when to come back."""
        headers = {
            "RateLimit": f'"resolvers";r=0;t={seconds}',
            "RateLimit-Policy": '"fixed window";"resolvers";q=5000;w=300',
        }
        return self.add(match, status=429, headers=headers, times=times)

    def replace(self, rules: Iterable[dict[str, Any]]) -> None:
        parsed = [Fault.parse(r) for r in rules]
        with self._lock:
            self._rules = parsed

    def clear(self) -> None:
        self.replace([])

    def take(self, request: str) -> Fault | None:
        """The rule for this request, one use counted off."""
        with self._lock:
            for fault in self._rules:
                if fault.times != 0 and re.search(fault.match, request):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def dump(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(f) for f in self._rules]
