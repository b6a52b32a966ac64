"""How the stand-in behaves: a JSON object in one file, read at the start and again when it changes."""

import json
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

__all__ = ["FAULT_FILE", "SERVING_FAULTS", "START_FAULTS", "Settings", "Watched"]

FAULT_FILE = "/etc/eyas-lab/engine.fault"

#: Faults that end the start, in the order in which a start reaches them.
START_FAULTS = (
    "old-driver",
    "memory-taken",
    "oom-weights",
    "wrong-head",
    "truncated-weights",
    "oom-profile",
    "kv-too-small",
    "oom-kv",
    "oom-graphs",
    "oom-speculative",
    "oom-sampler",
    "nccl",
    "stuck-start",
)
SERVING_FAULTS = (
    "hang",
    "worker-death",
    "core-death",
    "error-500",
    "slow",
    "low-acceptance",
    "garbage",
    "lossy",
)


@dataclass(frozen=True)
class Settings:
    """``fault`` is one of the names above or "". ``after_requests``: the fault acts on later requests only.

    ``tokens_per_s`` is one stream's speed without speculation, ``acceptance`` the share of drafted tokens
    that are right, ``start_s`` the length of a start, ``death_exit_s`` how long the server answers 503 after
    its engine died (measured on the real one: 3.9 to 4.8 s, then exit 0).
    """

    fault: str = ""
    after_requests: int = 0
    tokens_per_s: float = 200.0
    prefill_tokens_per_s: float = 20000.0
    acceptance: float = 0.7
    start_s: float = 1.0
    death_exit_s: float = 4.0
    memory_gib: float = 23.64

    @classmethod
    def parse(cls, text: str) -> "Settings":
        """From the file's text: a JSON object, or only the name of a fault. ValueError says what is wrong."""
        text = text.strip()
        data: dict[str, Any] = json.loads(text) if text.startswith("{") else {"fault": text}
        known: dict[str, type[Any]] = {f.name: type(getattr(cls, f.name)) for f in fields(cls)}
        if unknown := sorted(set(data) - set(known)):
            raise ValueError(f"unknown {', '.join(unknown)}; known: {', '.join(known)}")
        settings = replace(cls(), **{name: known[name](value) for name, value in data.items()})
        if settings.fault not in ("", *START_FAULTS, *SERVING_FAULTS):
            raise ValueError(f"no fault is named {settings.fault!r}")
        if min(settings.tokens_per_s, settings.prefill_tokens_per_s) <= 0:
            raise ValueError("speeds are tokens a second, above 0")
        return settings


class Watched:
    """The settings now; the file is looked at again on each ``get``."""

    def __init__(self, path: str = "") -> None:
        self.path = Path(path or os.environ.get("EYAS_STANDIN_FILE", FAULT_FILE))
        self._seen: tuple[int, int] | None = None
        self._settings = Settings()

    def get(self) -> Settings:
        try:
            stat = self.path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._seen:
                self._settings = Settings.parse(self.path.read_text(encoding="utf-8"))
                self._seen = (stat.st_mtime_ns, stat.st_size)
        except FileNotFoundError:
            self._seen, self._settings = None, Settings()
        return self._settings
