"""One case as rules see it: the log's hits, facts, unit and metrics, and what the start was asked for."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from checks.doctor.metrics import Metrics
from checks.doctor.patterns import option, prose
from checks.doctor.scan import Hit, LogView
from checks.doctor.unit import Unit
from checks.facts import HostFacts, Known
from checks.outcome import Evidence

__all__ = ["Case", "divisors", "gib"]

_SIZES = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 1024.0, "": 2**-30}


@dataclass
class Case:
    """Lookups that rules share. Everything is computed once and never raises on odd values."""

    log: LogView | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    unit: Unit | None = None
    metrics: Metrics | None = None
    kernel: LogView | None = None
    engine: str = ""
    version: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    # -- log ------------------------------------------------------------------------------------------
    @cached_property
    def hits(self) -> list[Hit]:
        return (self.log.hits if self.log else []) + (self.kernel.hits if self.kernel else [])

    @cached_property
    def _by_name(self) -> dict[str, list[Hit]]:
        names: dict[str, list[Hit]] = {}
        for hit in self.hits:
            for name in {hit.sig.mark, hit.sig.id} - {""}:
                names.setdefault(name, []).append(hit)
        return names

    def all(self, mark: str) -> list[Hit]:
        """Hits of every signature with this mark or id, in line order."""
        return self._by_name.get(mark, [])

    def first(self, mark: str) -> Hit | None:
        """The first hit of the last start that has one."""
        found = self.all(mark)
        last = max((h.start for h in found), default=0)
        return next((h for h in found if h.start == last), None)

    def last(self, mark: str) -> Hit | None:
        found = self.all(mark)
        return found[-1] if found else None

    def has(self, *marks: str) -> bool:
        return any(m in self._by_name for m in marks)

    @cached_property
    def failed(self) -> bool:
        """Some exception other than "the engine failed, see above"."""
        lines = {h.line for h in self.all("symptom.engine")}
        return any(h.line not in lines for h in self.all("exception"))

    def before(self, mark: str, hit: Hit) -> bool:
        """The mark was seen earlier in the same start as this hit."""
        return any(h.line <= hit.line and h.start == hit.start for h in self.all(mark))

    def evidence(self, *hits: Hit | None, source: str = "log") -> tuple[Evidence, ...]:
        """The lines as evidence, at most four, cut to 400 characters."""
        name = self.sources.get(source, source)
        return tuple(Evidence(name, h.text[:400], h.line) for h in hits[:4] if h is not None)

    def fact(self, path: str, text: str) -> Evidence:
        return Evidence(f"{self.sources.get('facts', 'facts')}:{path}", text[:400])

    # -- facts ----------------------------------------------------------------------------------------
    @cached_property
    def probe(self) -> HostFacts | None:
        """The facts as a saved probe, when they are one."""
        if {"schema", "host", "taken_at"} <= set(self.facts):
            tree = {k: v for k, v in self.facts.items() if k not in {"schema", "host", "taken_at"}}
            return HostFacts(str(self.facts["host"]), 0.0, tree)
        return None

    def known(self, path: str) -> Any:
        """The probed value, or None; parts of it that nobody could read are left out."""
        found = self.probe.get(path) if self.probe else None
        return _read(found.value) if isinstance(found, Known) else None

    @cached_property
    def prose(self) -> str:
        """All flat facts as one lower-case text: "key: value" lines."""
        if self.probe:
            return ""
        lines = (f"{k}: {v if isinstance(v, str) else json.dumps(v)}" for k, v in self.facts.items())
        return "\n".join(lines).lower()[:50_000]

    def said(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        """A lower-case pattern in the flat facts, as they are and with words for underscores."""
        if not self.prose:
            return None
        found = re.search(pattern, self.prose)
        return found or ("_" in self.prose and re.search(pattern, self.prose.replace("_", " "))) or None

    def says(self, *keys: str) -> str:
        """The first of these flat facts, as text."""
        for key in keys:
            value = self.facts.get(key)
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return str(value)
        return ""

    # -- what was asked for -----------------------------------------------------------------------------
    @cached_property
    def asked(self) -> tuple[str, ...]:
        """Texts that hold the start's settings, the most specific first."""
        log = [h.text for h in reversed(self.all("args"))][:4]
        unit = [" ".join(self.unit.all("ExecStart"))] if self.unit else []
        units = self.known("eyas.units") or {}
        argv = [" ".join(map(str, u.get("argv") or [])) for u in units.values() if isinstance(u, dict)]
        texts = [self.prose, *unit, *argv, *log]
        return tuple(t.lower() for t in texts if t)

    def option(self, name: str) -> str:
        """A setting of the start ("tp", "util", ...), "" when nothing tells it."""
        for text in self.asked:
            for pattern in option(name):
                found = pattern.search(text)
                if found:
                    return found[1]
        return ""

    def number(self, name: str) -> int:
        value = self.option(name)
        return int(value) if value.isdigit() else 0

    @cached_property
    def tp(self) -> int:
        return self.number("tp")

    @cached_property
    def util(self) -> float:
        return float(self.option("util") or 0)

    @cached_property
    def gpus(self) -> int:
        """GPUs of the host, 0 when unknown."""
        probed = self.known("gpus")
        if isinstance(probed, list):
            return len(probed)
        found = re.match(r"\D{0,3}(\d{1,4})", self.says("count"))
        return int(found[1]) if found else 0

    @cached_property
    def spec(self) -> bool:
        """The start asked for speculation."""
        if any(prose("speculation").search(t) for t in self.asked):
            return True
        return bool(self.says("draft")) or self.has("draft.load", "spec.metrics")

    @cached_property
    def sglang(self) -> bool:
        return (
            self.engine == "sglang"
            or self.has("sgl.not-enough", "sgl.smaller")
            or bool(self.option("fraction"))
        )


def _read(node: Any) -> Any:
    """A fact's value without the parts that are ``{"missing": why}``: None in a list, no key in a mapping."""
    if isinstance(node, dict):
        return None if _missing(node) else {k: _read(v) for k, v in node.items() if not _missing(v)}
    return [_read(v) for v in node] if isinstance(node, list) else node


def _missing(node: Any) -> bool:
    return isinstance(node, dict) and set(node) == {"missing"}


def divisors(number: int, *, most: int = 64, step: int = 1) -> list[int]:
    """Sizes that divide ``number`` into multiples of ``step``, up to ``most``."""
    return [n for n in range(1, most + 1) if number % n == 0 and (number // n) % step == 0]


def gib(text: str) -> float:
    """Sizes like 4.64 GiB or 304.00 MiB as GiB; 0 when it is neither."""
    found = re.match(r"([\d.]+) ?([KMGT]?)i?B?", text)
    return float(found[1]) * _SIZES[found[2]] if found else 0.0
