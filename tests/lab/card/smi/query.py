"""``--query-gpu`` and ``--query-compute-apps``: comma-separated values."""

from collections.abc import Callable
from typing import Any

from .nvml import MIB, Card, Failed, on_off, unit, watts

__all__ = ["query", "query_apps"]


def _mib(card: Card, name: str) -> Any:
    memory = card.memory()
    return None if memory is None else f"{getattr(memory, name) // MIB} MiB"


QUERY: dict[str, Callable[[Card], Any]] = {
    "index": lambda c: c.index,
    "name": lambda c: c.words("Name"),
    "gpu_name": lambda c: c.words("Name"),
    "uuid": lambda c: c.words("UUID"),
    "gpu_uuid": lambda c: c.words("UUID"),
    "serial": lambda c: c.words("Serial"),
    "count": lambda c: len(c.nvml.cards()),
    "driver_version": lambda c: c.nvml.words("nvmlSystemGetDriverVersion"),
    "vbios_version": lambda c: c.words("VbiosVersion"),
    "compute_cap": lambda c: c.cc() and ".".join(map(str, c.cc())),
    "pci.bus_id": lambda c: c.pci() and c.pci().id.decode(),
    "gpu_bus_id": lambda c: c.pci() and c.pci().id.decode(),
    "memory.total": lambda c: _mib(c, "total"),
    "memory.used": lambda c: _mib(c, "used"),
    "memory.free": lambda c: _mib(c, "free"),
    "memory.reserved": lambda c: _mib(c, "reserved"),
    "utilization.gpu": lambda c: c.utilization() and f"{c.utilization()[0]} %",
    "utilization.memory": lambda c: c.utilization() and f"{c.utilization()[1]} %",
    "temperature.gpu": lambda c: c.number("Temperature", 0),
    "power.draw": lambda c: watts(c.number("PowerUsage"), "[N/A]"),
    "power.limit": lambda c: watts(c.number("EnforcedPowerLimit"), "[N/A]"),
    "power.default_limit": lambda c: watts(c.number("PowerManagementDefaultLimit"), "[N/A]"),
    "pstate": lambda c: f"P{c.number('PerformanceState')}",
    "persistence_mode": lambda c: on_off(c.number("PersistenceMode"), "[N/A]"),
    "compute_mode": lambda c: "Default" if c.number("ComputeMode") == 0 else "Exclusive_Process",
    "mig.mode.current": lambda c: on_off(c.pair("MigMode") and c.pair("MigMode")[0], "[N/A]"),
    "ecc.mode.current": lambda c: on_off(c.pair("EccMode") and c.pair("EccMode")[0], "[N/A]"),
    "ecc.errors.uncorrected.volatile.total": lambda c: c.ecc_errors(1, 0),
    "ecc.errors.uncorrected.aggregate.total": lambda c: c.ecc_errors(1, 1),
    "pcie.link.gen.current": lambda c: c.number("CurrPcieLinkGeneration"),
    "pcie.link.gen.max": lambda c: c.number("MaxPcieLinkGeneration"),
    "pcie.link.width.current": lambda c: c.number("CurrPcieLinkWidth"),
    "pcie.link.width.max": lambda c: c.number("MaxPcieLinkWidth"),
    "clocks.sm": lambda c: unit(c.number("ClockInfo", 1), "MHz", "[N/A]"),
    "clocks.mem": lambda c: unit(c.number("ClockInfo", 2), "MHz", "[N/A]"),
    "clocks.max.sm": lambda c: unit(c.number("MaxClockInfo", 1), "MHz", "[N/A]"),
}


def query(cards: list[Card], fields: list[str], fmt: list[str]) -> None:
    for name in fields:
        if name not in QUERY:
            raise Failed(2, f'Field "{name}" is not a valid field to query.')
    if "noheader" not in fmt:
        print(", ".join(fields))
    for card in cards:
        row = [_cell(card, name, "nounits" in fmt) for name in fields]
        print(", ".join(row))


def _cell(card: Card, name: str, bare: bool) -> str:
    if card.error:
        return f"[{card.nvml.said(card.error)}]"
    value = QUERY[name](card)
    text = "[N/A]" if value is None else str(value)
    return text.split(" ")[0] if bare and text.split(" ")[-1] in {"MiB", "%", "W", "MHz"} else text


def query_apps(cards: list[Card], fields: list[str], fmt: list[str]) -> None:
    if "noheader" not in fmt:
        print(", ".join(fields))
    for card in cards:
        for p in card.processes():
            cells = {
                "pid": str(p.pid),
                "gpu_uuid": card.words("UUID"),
                "used_memory": f"{p.memory // MIB}" + ("" if "nounits" in fmt else " MiB"),
                "used_gpu_memory": f"{p.memory // MIB}" + ("" if "nounits" in fmt else " MiB"),
                "process_name": card.nvml.words("nvmlSystemGetProcessName", p.pid) or "[Not Found]",
                "name": card.nvml.words("nvmlSystemGetProcessName", p.pid) or "[Not Found]",
            }
            print(", ".join(cells.get(name, "[N/A]") for name in fields))
