"""HostFacts for a person: one screen, every Missing with its reason."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from checks.facts import HostFacts, Missing

__all__ = ["render_facts"]


def render_facts(facts: HostFacts) -> Group:
    """The tables of `invoke facts`: host, disks, driver, cards, ports, what eyas has there."""
    parts = [_pairs(f"host {facts.host}", _host(facts)), _disks(facts), _pairs("driver", _driver(facts))]
    parts += [_cards(facts), _ports(facts), _pairs("eyas", _ours(facts))]
    probe = facts.tree.get("probe", {})
    return Group(
        *parts, Text(f"looked in {probe.get('ms', '?')} ms as uid {probe.get('uid', '?')}", style="dim")
    )


def gib(size: Any) -> str:
    return f"{size / (1 << 30):.1f} GiB" if isinstance(size, int) else str(size)


def _cell(facts: HostFacts, path: str, show: Callable[[Any], str] = str) -> Text:
    fact = facts.get(path)
    if isinstance(fact, Missing):
        return Text(f"unknown: {fact.reason}", style="yellow")
    return Text("none", style="dim") if fact.value in (None, [], "", {}) else Text(show(fact.value))


def _pairs(title: str, rows: Iterator[tuple[str, Text]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _host(facts: HostFacts) -> Iterator[tuple[str, Text]]:
    def yes(value: Any) -> str:
        return "yes" if value else "no"

    yield "system", Text(" ").join([_cell(facts, "os.pretty"), Text("kernel"), _cell(facts, "os.kernel")])
    yield "arch, glibc", Text(", ").join([_cell(facts, "os.arch"), _cell(facts, "os.glibc")])
    yield "python", _cell(facts, "python.version")
    yield "processor", Text(" x ").join([_cell(facts, "cpu.count"), _cell(facts, "cpu.model")])
    yield (
        "memory",
        Text(" of ").join([_cell(facts, "memory.available", gib), _cell(facts, "memory.total", gib)]),
    )
    yield "shared memory", Text(" of ").join([_cell(facts, "shm.free", gib), _cell(facts, "shm.total", gib)])
    yield "clock synchronised", _cell(facts, "os.time_synced", yes)
    yield "reboot required", _cell(facts, "driver.reboot_required.required", yes)
    yield "container", _cell(facts, "os.container")


def _driver(facts: HostFacts) -> Iterator[tuple[str, Text]]:
    yield (
        "module, library",
        Text(", ").join([_cell(facts, "driver.module_version"), _cell(facts, "driver.library_version")]),
    )
    yield "CUDA it runs", _cell(facts, "driver.cuda_version")
    yield "package", Text(" ").join([_cell(facts, "driver.package"), _cell(facts, "driver.package_version")])
    yield "held", _cell(facts, "driver.holds", ", ".join)
    yield (
        "fabric manager",
        Text(" ").join(
            [_cell(facts, "driver.fabric_manager.version"), _cell(facts, "driver.fabric_manager.active")]
        ),
    )
    yield "NVML says", _cell(facts, "driver.nvml_error")
    yield (
        "Xids since boot",
        _cell(facts, "xid", lambda xids: ", ".join(f"{x['code']} on {x['pci']}" for x in xids)),
    )
    yield "toolkit", Text(" ").join([_cell(facts, "cuda.home"), _cell(facts, "cuda.nvcc_version")])


def _ours(facts: HostFacts) -> Iterator[tuple[str, Text]]:
    yield "current", _cell(facts, "eyas.current", lambda c: ", ".join(f"{k} -> {v}" for k, v in c.items()))
    yield "locked by", _cell(facts, "eyas.lock_holder")
    yield "environments", _cell(facts, "eyas.envs", _listed)
    yield "weights", _cell(facts, "eyas.weights", _listed)
    yield "units", _cell(facts, "eyas.units", _units)


def _listed(items: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{i.get('id', '?')} ({'complete' if i.get('complete') is True else 'incomplete'})" for i in items
    )


def _units(units: dict[str, Any]) -> str:
    return ", ".join(f"{name} {u.get('active', 'unknown')}/{u.get('sub', '')}" for name, u in units.items())


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rows(facts: HostFacts, path: str) -> tuple[int, Missing | None]:
    fact = facts.get(path)
    return (0, fact) if isinstance(fact, Missing) else (len(fact.value), None)


def _fill(table: Table, facts: HostFacts, path: str, columns: dict[str, Callable[[Any], str]]) -> Table:
    """One row per entry of the list at ``path``; the reason alone when the list is Missing."""
    count, gone = _rows(facts, path)
    if gone:
        table.add_row(Text(f"unknown: {gone.reason}", style="yellow"))
    for i in range(count):
        table.add_row(*[_cell(facts, f"{path}.{i}.{name}", show) for name, show in columns.items()])
    return table


def _disks(facts: HostFacts) -> Table:
    table = _table("disks", "folder", "mount", "type", "free", "total")
    return _fill(table, facts, "disks", {"path": str, "mount": str, "fstype": str, "free": gib, "total": gib})


def _cards(facts: HostFacts) -> Table:
    table = _table(
        "cards", "#", "name", "cc", "memory used", "total", "power", "temp", "PCIe", "throttle", "error"
    )
    columns: dict[str, Callable[[Any], str]] = {
        "index": str,
        "name": str,
        "cc": str,
        "memory_used": gib,
        "memory_total": gib,
        "power": lambda v: f"{v:.0f} W",
        "temperature": lambda v: f"{v} C",
        "pcie.width": lambda v: f"x{v}",
        "throttle": ", ".join,
        "error": str,
    }
    return _fill(table, facts, "gpus", columns)


def _ports(facts: HostFacts) -> Table:
    table = _table("listening ports", "port", "address", "process", "unit")
    return _fill(table, facts, "ports", {"port": str, "address": str, "process": str, "unit": str})
