#!/usr/bin/python3
"""A stand-in for nvidia-smi: prints what the NVML library beside it answers. No other library is used.

Known: no arguments (the table), -L, -q [-x], --query-gpu=..., --query-compute-apps=..., --format=csv[,...],
-i INDEX, topo -m, --version.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

MIB = 1 << 20
NOT_SUPPORTED = 3
THROTTLE = [
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("display_clocks_setting", 0x100),
]


class Memory(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Bar(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gi", ctypes.c_uint),
        ("ci", ctypes.c_uint),
    )


class Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("id", ctypes.c_char * 32),
    )


class Fabric(ctypes.Structure):
    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class Failed(Exception):
    """What nvidia-smi prints, and its exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Nvml:
    """NVML by symbol. A value the card doesn't have is None."""

    def __init__(self) -> None:
        try:
            self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as e:
            raise Failed(
                12,
                "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the"
                " NVIDIA Display Driver is properly installed and present in your system.",
            ) from e
        self.lib.nvmlErrorString.restype = ctypes.c_char_p
        code = self.lib.nvmlInitWithFlags(0)
        if code == 9:
            raise Failed(
                9,
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that"
                " the latest NVIDIA driver is installed and running.",
            )
        if code:
            raise Failed(code, f"Failed to initialize NVML: {self.said(code)}" + self.versions(code))

    def versions(self, code: int) -> str:
        text = ctypes.create_string_buffer(80)
        if code != 18 or self.lib.nvmlSystemGetNVMLVersion(text, 80):
            return ""
        return "\nNVML library version: " + ".".join(text.value.decode().split(".")[1:3])

    def said(self, code: int) -> str:
        return str(self.lib.nvmlErrorString(code).decode())

    def call(self, symbol: str, *args: Any) -> int:
        return int(getattr(self.lib, symbol)(*args))

    def number(self, symbol: str, *args: Any, kind: Any = ctypes.c_uint) -> Any:
        out = kind()
        code = self.call(symbol, *args, ctypes.byref(out))
        return None if code else out.value

    def pair(self, symbol: str, handle: Any) -> Any:
        a, b = ctypes.c_uint(), ctypes.c_uint()
        return None if self.call(symbol, handle, ctypes.byref(a), ctypes.byref(b)) else (a.value, b.value)

    def words(self, symbol: str, *args: Any) -> Any:
        out = ctypes.create_string_buffer(128)
        return None if self.call(symbol, *args, out, 128) else out.value.decode()

    def struct(self, symbol: str, handle: Any, out: Any) -> Any:
        return None if self.call(symbol, handle, ctypes.byref(out)) else out

    def cards(self) -> list["Card"]:
        return [Card(self, i) for i in range(self.number("nvmlDeviceGetCount_v2") or 0)]


class Card:
    def __init__(self, nvml: Nvml, index: int) -> None:
        self.nvml, self.index = nvml, index
        self.handle = ctypes.c_void_p()
        self.error = nvml.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(self.handle))

    def number(self, name: str, *args: Any, wide: bool = False) -> Any:
        kind = ctypes.c_ulonglong if wide else ctypes.c_uint
        return self.nvml.number("nvmlDeviceGet" + name, self.handle, *args, kind=kind)

    def words(self, name: str) -> Any:
        return self.nvml.words("nvmlDeviceGet" + name, self.handle)

    def pair(self, name: str) -> Any:
        return self.nvml.pair("nvmlDeviceGet" + name, self.handle)

    def memory(self) -> Any:
        return self.nvml.struct("nvmlDeviceGetMemoryInfo_v2", self.handle, Memory(version=0x02000028))

    def pci(self) -> Any:
        return self.nvml.struct("nvmlDeviceGetPciInfo_v3", self.handle, Pci())

    def cc(self) -> Any:
        return self.pair("CudaComputeCapability")

    def processes(self) -> list[Process]:
        out, count = (Process * 64)(), ctypes.c_uint(64)
        symbol = "nvmlDeviceGetComputeRunningProcesses_v3"
        failed = self.nvml.call(symbol, self.handle, ctypes.byref(count), out)
        return [] if failed else list(out[: count.value])

    def utilization(self) -> Any:
        out = (ctypes.c_uint * 2)()
        return None if self.nvml.call("nvmlDeviceGetUtilizationRates", self.handle, out) else tuple(out)

    def remapped(self) -> Any:
        out = [ctypes.c_uint() for _ in range(4)]
        failed = self.nvml.call("nvmlDeviceGetRemappedRows", self.handle, *map(ctypes.byref, out))
        return None if failed else tuple(v.value for v in out)

    def ecc_errors(self, kind: int, counter: int) -> Any:
        return self.number("TotalEccErrors", kind, counter, wide=True)

    def fabric(self) -> Any:
        return self.nvml.struct("nvmlDeviceGetGpuFabricInfo", self.handle, Fabric())


def unit(value: Any, suffix: str, none: str = "N/A") -> str:
    return none if value is None else f"{value} {suffix}".strip()


def watts(milliwatts: Any, none: str = "N/A") -> str:
    return none if milliwatts is None else f"{milliwatts / 1000:.2f} W"


def on_off(value: Any, none: str = "N/A") -> str:
    return none if value is None else ("Enabled" if value else "Disabled")


# ---- --query-gpu --------------------------------------------------------------------------------------


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


# ---- -q -x --------------------------------------------------------------------------------------------

Tree = dict[str, Any]


def xml(nvml: Nvml, cards: list[Card]) -> None:
    print('<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>')
    for name, value in _head(nvml).items():
        _tag(name, value, 1)
    for card in cards:
        bus = card.pci()
        print(f'\t<gpu id="{bus.id.decode() if bus else "ERR!"}">')
        for name, value in _tree(card).items():
            _tag(name, value, 2)
        print("\t</gpu>")
    print("\n</nvidia_smi_log>")


def _head(nvml: Nvml) -> Tree:
    cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int) or 0
    return {
        "timestamp": time.strftime("%a %b %d %H:%M:%S %Y"),
        "driver_version": nvml.words("nvmlSystemGetDriverVersion"),
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "attached_gpus": len(nvml.cards()),
    }


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


def _tree(card: Card) -> Tree:
    if card.error:
        return {"product_name": card.nvml.said(card.error)}
    return {**_identity(card), **_links(card), **_load(card), **_errors(card), **_speed(card)}


def _identity(card: Card) -> Tree:
    mig = card.pair("MigMode")
    return {
        "product_name": card.words("Name"),
        "product_architecture": {7: "Ampere", 8: "Ada Lovelace", 9: "Hopper"}.get(
            card.number("Architecture")
        ),
        "display_active": on_off(card.number("DisplayActive")),
        "persistence_mode": on_off(card.number("PersistenceMode")),
        "mig_mode": {"current_mig": on_off(mig and mig[0]), "pending_mig": on_off(mig and mig[1])},
        "serial": card.words("Serial"),
        "uuid": card.words("UUID"),
        "minor_number": card.number("MinorNumber"),
        "vbios_version": card.words("VbiosVersion"),
        "board_part_number": card.words("BoardPartNumber"),
        "gpu_recovery_action": _recovery(card),
    }


class Field(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("time", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


def _recovery(card: Card) -> Any:
    out = Field(id=230)
    if card.nvml.call("nvmlDeviceGetFieldValues", card.handle, 1, ctypes.byref(out)) or out.code:
        return None
    return {0: "None", 1: "Reset", 2: "Reboot", 3: "Drain P2P", 4: "Drain and Reset"}.get(out.value)


def _links(card: Card) -> Tree:
    bus = card.pci()
    return {
        "pci": {
            "pci_bus": bus and f"{bus.bus:02X}",
            "pci_device": bus and f"{bus.device:02X}",
            "pci_domain": bus and f"{bus.domain:04X}",
            "pci_device_id": bus and f"{bus.device_id:08X}",
            "pci_bus_id": bus and bus.id.decode(),
            "pci_sub_system_id": bus and f"{bus.subsystem_id:08X}",
            "pci_gpu_link_info": {
                "pcie_gen": {
                    "max_link_gen": card.number("MaxPcieLinkGeneration"),
                    "current_link_gen": card.number("CurrPcieLinkGeneration"),
                    "device_current_link_gen": card.number("CurrPcieLinkGeneration"),
                    "max_device_link_gen": card.number("MaxPcieLinkGeneration"),
                    "max_host_link_gen": None,
                },
                "link_widths": {
                    "max_link_width": unit(card.number("MaxPcieLinkWidth"), "").replace(" ", "") + "x",
                    "current_link_width": unit(card.number("CurrPcieLinkWidth"), "").replace(" ", "") + "x",
                },
            },
            "replay_counter": card.number("PcieReplayCounter"),
            "tx_util": unit(card.number("PcieThroughput", 0), "KB/s"),
            "rx_util": unit(card.number("PcieThroughput", 1), "KB/s"),
        },
        "fabric": _fabric(card),
    }


def _fabric(card: Card) -> Tree:
    info = card.fabric()
    if info is None:
        return {"state": None, "status": None, "cliqueId": None, "clusterUuid": None}
    states = {0: "Not Supported", 1: "Not Started", 2: "In Progress", 3: "Completed"}
    status = "Success" if not info.status else card.nvml.said(info.status)
    return {
        "state": states.get(info.state),
        "status": status if info.state == 3 else None,
        "cliqueId": info.clique,
        "clusterUuid": "00000000-0000-0000-0000-000000000000",
    }


def _load(card: Card) -> Tree:
    memory = card.memory()
    bar = card.nvml.struct("nvmlDeviceGetBAR1MemoryInfo", card.handle, Bar())
    bits = card.number("CurrentClocksThrottleReasons", wide=True)
    used = card.utilization()
    names = ("total", "reserved", "used", "free")
    return {
        "fan_speed": unit(card.number("FanSpeed"), "%"),
        "performance_state": unit(card.number("PerformanceState"), "").join(("P", "")),
        "clocks_event_reasons": {
            f"clocks_event_reason_{n}": None if bits is None else ("Active" if bits & b else "Not Active")
            for n, b in THROTTLE
        },
        "fb_memory_usage": {n: memory and f"{getattr(memory, n) // MIB} MiB" for n in names},
        "bar1_memory_usage": {n: bar and f"{getattr(bar, n) // MIB} MiB" for n in ("total", "used", "free")},
        "compute_mode": "Default" if card.number("ComputeMode") == 0 else "Exclusive_Process",
        "utilization": {
            "gpu_util": used and f"{used[0]} %",
            "memory_util": used and f"{used[1]} %",
        },
        "processes": {"process_info": [_process(card, p) for p in card.processes()]},
    }


def _process(card: Card, p: Process) -> Tree:
    return {
        "gpu_instance_id": None,
        "compute_instance_id": None,
        "pid": p.pid,
        "type": "C",
        "process_name": card.nvml.words("nvmlSystemGetProcessName", p.pid),
        "used_memory": f"{p.memory // MIB} MiB",
    }


def _errors(card: Card) -> Tree:
    ecc, rows = card.pair("EccMode"), card.remapped()
    counts = {}
    for counter, name in enumerate(("volatile", "aggregate")):
        counts[name] = {
            "sram_correctable": card.ecc_errors(0, counter) and 0,
            "dram_correctable": card.ecc_errors(0, counter),
            "dram_uncorrectable": card.ecc_errors(1, counter),
        }
    return {
        "ecc_mode": {"current_ecc": on_off(ecc and ecc[0]), "pending_ecc": on_off(ecc and ecc[1])},
        "ecc_errors": counts,
        "remapped_rows": {
            "remapped_row_corr": rows and rows[0],
            "remapped_row_unc": rows and rows[1],
            "remapped_row_pending": rows and ("Yes" if rows[2] else "No"),
            "remapped_row_failure": rows and ("Yes" if rows[3] else "No"),
        },
    }


def _speed(card: Card) -> Tree:
    limits = card.pair("PowerManagementLimitConstraints")
    kinds = ("graphics_clock", "sm_clock", "mem_clock", "video_clock")
    return {
        "temperature": {"gpu_temp": unit(card.number("Temperature", 0), "C")},
        "gpu_power_readings": {
            "power_state": f"P{card.number('PerformanceState')}",
            "average_power_draw": watts(card.number("PowerUsage")),
            "instant_power_draw": watts(card.number("PowerUsage")),
            "current_power_limit": watts(card.number("EnforcedPowerLimit")),
            "requested_power_limit": watts(card.number("PowerManagementLimit")),
            "default_power_limit": watts(card.number("PowerManagementDefaultLimit")),
            "min_power_limit": watts(limits and limits[0]),
            "max_power_limit": watts(limits and limits[1]),
        },
        "clocks": {n: unit(card.number("ClockInfo", i), "MHz") for i, n in enumerate(kinds)},
        "max_clocks": {n: unit(card.number("MaxClockInfo", i), "MHz") for i, n in enumerate(kinds)},
    }


# ---- text ---------------------------------------------------------------------------------------------


def listing(cards: list[Card]) -> None:
    for c in cards:
        if c.error:
            print(f"Unable to determine the device handle for gpu {c.index}: {c.nvml.said(c.error)}")
        else:
            print(f"GPU {c.index}: {c.words('Name')} (UUID: {c.words('UUID')})")


def details(nvml: Nvml, cards: list[Card]) -> None:
    print("\n==============NVSMI LOG==============\n")
    for name, value in _head(nvml).items():
        print(f"{name.replace('_', ' ').title():42}: {value}")
    for card in cards:
        print(f"\nGPU {card.pci().id.decode() if card.pci() else 'ERR!'}")
        _indented(_tree(card), 1)


def _indented(tree: Tree, depth: int) -> None:
    for name, value in tree.items():
        label = "    " * depth + name.replace("_", " ").title()
        if isinstance(value, dict):
            print(label)
            _indented(value, depth + 1)
        elif not isinstance(value, list):
            print(f"{label:42}: {'N/A' if value is None else value}")


def table(nvml: Nvml, cards: list[Card]) -> None:
    head = _head(nvml)
    line = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    print(time.strftime("%a %b %d %H:%M:%S %Y"))
    print("+" + "-" * 89 + "+")
    title = f"NVIDIA-SMI {head['driver_version']:22} Driver Version: {head['driver_version']:14} CUDA Version: {head['cuda_version']:8}"
    print(f"| {title:87} |\n{line}")
    print(
        f"| {'GPU  Name                 Persistence-M':39} | {'Bus-Id          Disp.A':22} | {'Volatile Uncorr. ECC':>20} |"
    )
    print(
        f"| {'Fan  Temp   Perf          Pwr:Usage/Cap':39} | {'Memory-Usage':>22} | {'GPU-Util  Compute M.':>20} |\n{line}"
    )
    for c in cards:
        _rows(c)
        print(line)
    _process_rows(cards)


def _rows(c: Card) -> None:
    if c.error:
        print(f"| {c.index:3}  ERR!{'':32} | {c.nvml.said(c.error):22} | {'ERR!':>20} |")
        return
    memory, used = c.memory(), c.utilization()
    persistence = "On" if c.number("PersistenceMode") else "Off"
    ecc = c.ecc_errors(1, 0)
    print(
        f"| {c.index:3}  {c.words('Name')[:25]:25} {persistence:>8} | {c.pci().id.decode():16} Off   | {'N/A' if ecc is None else ecc:>20} |"
    )
    power = f"{(c.number('PowerUsage') or 0) // 1000}W / {(c.number('EnforcedPowerLimit') or 0) // 1000}W"
    left = f"{unit(c.number('FanSpeed'), '%').replace(' ', ''):>4} {c.number('Temperature', 0):4}C    P{c.number('PerformanceState')}  {power:>17}"
    sizes = f"{memory.used // MIB}MiB / {memory.total // MIB}MiB"
    print(f"| {left:39} | {sizes:>22} | {f'{used[0]}%':>8}     Default |")


def _process_rows(cards: list[Card]) -> None:
    print("+" + "-" * 89 + "+\n" + f"| {'Processes:':87} |")
    found = [(c, p) for c in cards if not c.error for p in c.processes()]
    for c, p in found:
        name = c.nvml.words("nvmlSystemGetProcessName", p.pid) or "?"
        print(f"| {f'{c.index:4}   {p.pid:8}   C   {name[:48]:48} {p.memory // MIB:8}MiB':87} |")
    if not found:
        print(f"| {' No running processes found':87} |")
    print("+" + "-" * 89 + "+")


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


def main(argv: list[str]) -> int:
    options = dict(a.partition("=")[::2] for a in argv if a.startswith("--"))
    fmt = options.get("--format", "").split(",")
    try:
        nvml = Nvml()
        cards = nvml.cards()
        if "-i" in argv:
            wanted = argv[argv.index("-i") + 1 :][:1]
            cards = [c for c in cards if str(c.index) in wanted]
        if not cards:
            print("No devices were found")
            return 6
        if "--query-gpu" in options:
            query(cards, options["--query-gpu"].split(","), fmt)
        elif "--query-compute-apps" in options:
            query_apps(cards, options["--query-compute-apps"].split(","), fmt)
        elif "-L" in argv or "--list-gpus" in options:
            listing(cards)
        elif argv[:1] == ["topo"]:
            topology(cards)
        elif "-x" in argv or "--xml-format" in options:
            xml(nvml, cards)
        elif "-q" in argv or "--query" in options:
            details(nvml, cards)
        elif "--version" in options:
            print(f"NVIDIA-SMI version  : {nvml.words('nvmlSystemGetDriverVersion')}")
        else:
            table(nvml, cards)
    except Failed as e:
        print(e)
        return e.code
    lost = [c.error for c in cards if c.error]
    return lost[0] if lost and len(lost) == len(cards) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
