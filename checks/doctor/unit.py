"""A systemd unit file as rules read it: keys to values in order, drop-ins appended, quotes removed."""

import re
import shlex
from dataclasses import dataclass, field

__all__ = ["Unit", "parse_unit"]

_YES = {"yes", "true", "on", "1"}
_SECONDS = {"": 1, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "ms": 0.001}


@dataclass(frozen=True)
class Unit:
    values: dict[str, list[str]] = field(default_factory=dict)

    def all(self, key: str) -> list[str]:
        return self.values.get(key, [])

    def get(self, key: str) -> str:
        """The last value, "" when unset (systemd: the last one wins)."""
        found = self.all(key)
        return found[-1] if found else ""

    def yes(self, key: str) -> bool:
        return self.get(key).lower() in _YES

    def seconds(self, key: str) -> float | None:
        """A time span in seconds; infinity is None, unset is None."""
        parts = re.findall(r"([\d.]+) ?([a-z]*)", self.get(key).lower())
        known = [float(n) * _SECONDS[u] for n, u in parts if u in _SECONDS and n.count(".") < 2]
        return sum(known) if known else None

    @property
    def environment(self) -> dict[str, str]:
        """Environment= lines as name to value."""
        found: dict[str, str] = {}
        for line in self.all("Environment"):
            for word in _words(line):
                name, sep, value = word.partition("=")
                if sep:
                    found[name] = value
        return found

    @property
    def text(self) -> str:
        return "\n".join(f"{k}={v}" for k, values in self.values.items() for v in values)


def parse_unit(text: str) -> Unit:
    """Read a unit file or ``systemctl cat`` output. Lines it does not know are skipped, never fatal."""
    values: dict[str, list[str]] = {}
    joined = re.sub(r"[ \t]*\\\r?\n\s*", " ", text)
    for raw in joined.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;[":
            continue
        key, sep, value = line.partition("=")
        if sep and re.fullmatch(r"[A-Za-z][\w-]{0,60}", key.strip()):
            values.setdefault(key.strip(), []).append(value.strip())
    return Unit(values)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
