"""Rules of memory accounting by engine version, from engines.toml."""

import functools
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from packaging.version import InvalidVersion, Version

from checks.planner.units import GIB
from inventory.catalogue import EngineRelease, load_catalogue
from inventory.errors import InventoryError

__all__ = ["Context", "Rules", "Static", "context", "release_of", "rules_for", "static_pool", "table"]


@dataclass(frozen=True)
class Rules:
    """How one range of versions accounts. ``measured``: its estimates were checked against real starts."""

    first: Version
    before: Version
    v2: str
    v2_methods: tuple[str, ...]
    unsplit_weights: bool
    v2_graph_estimate: bool
    held_counted: bool
    source: str
    measured: bool
    v2_mixtures: tuple[str, ...] = ()

    def runs_v2(self, *, architecture: str, moe: bool, hybrid: bool, method: str) -> bool:
        """True when a start of this model with this drafting method uses the second model runner."""
        if self.v2 == "none" or method not in self.v2_methods:
            return False
        return self.v2 == "all" or (not hybrid and (not moe or architecture in self.v2_mixtures))


@dataclass(frozen=True)
class Context:
    """Device memory of one process outside torch, in GiB, and torch's cuBLAS workspace."""

    base_gib: float
    growth_gib: float
    workspace_mib: int
    tp_base_gib: float
    tp_growth_gib: float
    driver_reserved_mib: int
    source: str

    def at_start(self, tp: int) -> int:
        """Bytes gone before the engine's first look at free memory."""
        return int((self.base_gib + (self.tp_base_gib if tp > 1 else 0)) * GIB)

    def growth(self, tp: int) -> int:
        """Further bytes by the end of profiling; the engine counts these against its budget."""
        return int((self.growth_gib + (self.tp_growth_gib if tp > 1 else 0)) * GIB)


@functools.cache
def context() -> Context:
    return Context(**_data()["context"])


@dataclass(frozen=True)
class Static:
    """SGLang's reserve for everything outside its static pool."""

    base_mb: float
    mb_per_token: float
    least_chunk: int
    large_gib: int
    large_reserve_mb: float
    graph_mb_per_request: float
    sizes: tuple[tuple[int, int, int], ...]
    source: str

    def chunked_prefill(self, device_total: int) -> int:
        return self._row(device_total)[1]

    def graph_requests(self, device_total: int) -> int:
        return self._row(device_total)[2]

    def _row(self, device_total: int) -> tuple[int, int, int]:
        return next((r for r in self.sizes if device_total <= r[0] * GIB), self.sizes[-1])


@functools.cache
def static_pool() -> Static:
    data = dict(_data()["static_pool"])
    return Static(**{**data, "sizes": tuple((a, b, c) for a, b, c in data["sizes"])})


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("checks.planner").joinpath("engines.toml").read_text(encoding="utf-8"))


@functools.cache
def release_of(engine: str, version: str | None) -> EngineRelease:
    """The catalogue's rows for a version; its newest when none is given. Raises UsageError for another."""
    catalogue = load_catalogue()
    return catalogue.release(engine, version or catalogue.releases(engine)[-1])


@functools.cache
def table(engine: str) -> tuple[Rules, ...]:
    """All ranges of an engine, oldest first."""
    return tuple(_rules(row) for row in _data().get(engine, ()))


def _rules(row: dict[str, Any]) -> Rules:
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    del rest["from"], rest["before"]
    return Rules(first=Version(row["from"]), before=Version(row["before"]), **rest)


@functools.cache
def rules_for(engine: str, version: str) -> Rules:
    """The rules of this version. Raises InventoryError for an engine or version without any."""
    rows = table(engine)
    if not rows:
        raise InventoryError(f"no memory rules for engine {engine!r}", hint="known: vllm, sglang")
    try:
        wanted = Version(version)
    except InvalidVersion as e:
        raise InventoryError(f"{version!r} is not a version number") from e
    for rules in rows:
        if rules.first <= wanted < rules.before:
            return rules
    raise InventoryError(f"no memory rules for {engine} {version}")
