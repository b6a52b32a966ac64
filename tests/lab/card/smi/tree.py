"""The card as the tree that ``-q`` and ``-q -x`` print, tags as in driver 580."""

import ctypes
import time
from typing import Any

from .nvml import MIB, Bar, Card, Field, Nvml, Process, on_off, unit, watts

__all__ = ["Tree", "head", "tree"]

Tree = dict[str, Any]
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


def head(nvml: Nvml) -> Tree:
    cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int) or 0
    return {
        "timestamp": time.strftime("%a %b %d %H:%M:%S %Y"),
        "driver_version": nvml.words("nvmlSystemGetDriverVersion"),
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "attached_gpus": len(nvml.cards()),
    }


def tree(card: Card) -> Tree:
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
