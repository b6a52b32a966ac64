"""What nvidia-smi prints: XML, the long list, the table, the topology."""

import time
from typing import Any
from xml.sax.saxutils import escape

from .nvml import MIB, Card, Nvml, unit
from .tree import Tree, head, tree

__all__ = ["details", "listing", "table", "topology", "xml"]


def xml(nvml: Nvml, cards: list[Card]) -> None:
    print('<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>')
    for name, value in head(nvml).items():
        _tag(name, value, 1)
    for card in cards:
        bus = card.pci()
        print(f'\t<gpu id="{bus.id.decode() if bus else "ERR!"}">')
        for name, value in tree(card).items():
            _tag(name, value, 2)
        print("\t</gpu>")
    print("\n</nvidia_smi_log>")


def _tag(name: str, value: Any, depth: int) -> None:
    pad = "\t" * depth
    if isinstance(value, list):
        for one in value:
            _tag(name, one, depth)
    elif isinstance(value, dict):
        print(f"{pad}<{name}>")
        for inner, v in value.items():
            _tag(inner, v, depth + 1)
        print(f"{pad}</{name}>")
    else:
        print(f"{pad}<{name}>{escape('N/A' if value is None else str(value))}</{name}>")


def listing(cards: list[Card]) -> None:
    for c in cards:
        if c.error:
            print(f"Unable to determine the device handle for gpu {c.index}: {c.nvml.said(c.error)}")
        else:
            print(f"GPU {c.index}: {c.words('Name')} (UUID: {c.words('UUID')})")


def details(nvml: Nvml, cards: list[Card]) -> None:
    print("\n==============NVSMI LOG==============\n")
    for name, value in head(nvml).items():
        print(f"{name.replace('_', ' ').title():42}: {value}")
    for card in cards:
        print(f"\nGPU {card.pci().id.decode() if card.pci() else 'ERR!'}")
        _indented(tree(card), 1)


def _indented(tree: Tree, depth: int) -> None:
    for name, value in tree.items():
        label = "    " * depth + name.replace("_", " ").title()
        if isinstance(value, dict):
            print(label)
            _indented(value, depth + 1)
        elif not isinstance(value, list):
            print(f"{label:42}: {'N/A' if value is None else value}")


def table(nvml: Nvml, cards: list[Card]) -> None:
    top = head(nvml)
    driver, cuda = top["driver_version"], top["cuda_version"]
    print(time.strftime("%a %b %d %H:%M:%S %Y"))
    print(WIDE)
    _wide(f"NVIDIA-SMI {driver:22} Driver Version: {driver:14} CUDA Version: {cuda:8}")
    print(LINE)
    _row("GPU  Name                 Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC")
    _row("Fan  Temp   Perf          Pwr:Usage/Cap", "        Memory-Usage", "GPU-Util  Compute M.")
    print(LINE)
    for card in cards:
        _card(card)
        print(LINE)
    print(WIDE)
    _processes(cards)
    print(WIDE)


LINE = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
WIDE = "+" + "-" * 89 + "+"


def _row(left: str, middle: str, right: str) -> None:
    print(f"| {left[:39]:39} | {middle[:22]:22} | {right[:20]:>20} |")


def _wide(text: str) -> None:
    print(f"| {text[:87]:87} |")


def _card(c: Card) -> None:
    if c.error:
        _row(f"{c.index:3}  ERR!", c.nvml.said(c.error), "ERR!")
        return
    persistence = "On" if c.number("PersistenceMode") else "Off"
    ecc, bus = c.ecc_errors(1, 0), c.pci()
    _row(
        f"{c.index:3}  {c.words('Name')[:25]:25} {persistence:>8}",
        f"{bus.id.decode() if bus else 'ERR!':16} Off",
        "N/A" if ecc is None else str(ecc),
    )
    _row(_heat(c), _memory(c), _work(c))


def _heat(c: Card) -> str:
    fan = unit(c.number("FanSpeed"), "%").replace(" ", "")
    watts = [(c.number(name) or 0) // 1000 for name in ("PowerUsage", "EnforcedPowerLimit")]
    state, degrees = c.number("PerformanceState"), c.number("Temperature", 0)
    return f"{fan:>4} {degrees:4}C    P{state}  {f'{watts[0]}W / {watts[1]}W':>17}"


def _memory(c: Card) -> str:
    memory = c.memory()
    text = f"{memory.used // MIB}MiB / {memory.total // MIB}MiB" if memory else "N/A"
    return f"{text:>22}"


def _work(c: Card) -> str:
    used, mig = c.utilization(), c.pair("MigMode")
    return f"{f'{used[0]}%' if used else 'N/A':>8}  {'MIG' if mig and mig[0] else 'Default':>10}"


def _processes(cards: list[Card]) -> None:
    _wide("Processes:")
    found = [(c, p) for c in cards if not c.error for p in c.processes()]
    for c, p in found:
        name = c.nvml.words("nvmlSystemGetProcessName", p.pid) or "?"
        _wide(f"{c.index:4}   {p.pid:8}   C   {name[:48]:48} {p.memory // MIB:8}MiB")
    if not found:
        _wide(" No running processes found")


def topology(cards: list[Card]) -> None:
    names = {0: "X", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
    print("\t" + "\t".join(f"GPU{c.index}" for c in cards))
    for a in cards:
        row = [f"GPU{a.index}"]
        for b in cards:
            level = a.number("TopologyCommonAncestor", b.handle)
            links = sum(a.number("NvLinkState", i) or 0 for i in range(18))
            row.append("X" if a is b else (f"NV{links}" if links else names.get(level, "?")))
        print("\t".join(row))
