"""Cards through nvidia-smi, only where NVML gives no answer. Tags move with the driver: all are tried."""

import re
from xml.etree import ElementTree as ET

from .base import Look, LookFailed, attempt, missing, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIB = 1 << 20
EVENTS = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "app_clocks",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
    "display_clocks_setting": "display",
}
#: In the order of NVML's numbers.
COMPUTE_MODES = ["Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"]
POWER = ("gpu_power_readings", "power_readings")
DRAW = ("instant_power_draw", "power_draw", "average_power_draw")
LIMIT = ("current_power_limit", "enforced_power_limit", "power_limit")


def collect(look: Look) -> "dict[str, Any]":
    """Facts in the shape of nvml.collect. LookFailed with nvidia-smi's own words when it fails as well."""
    code, out, err = look.finish("nvidia-smi", "-q", "-x", limit=8.0)
    if code or "<nvidia_smi_log" not in out:
        raise LookFailed(f"nvidia-smi exited {code}: {(out + err).strip()[-400:]}")
    capabilities = attempt(_capabilities, look)
    tree = parse(out, capabilities)
    none = missing("nvidia-smi shows no peer access")
    return dict(tree, p2p=none, topology=none)


def said(look: Look) -> "dict[str, Any]":
    """What a failing nvidia-smi prints: it names both versions of a mismatch."""
    try:
        code, out, err = look.finish("nvidia-smi", "-L", limit=5.0)
    except LookFailed as e:
        return missing(reason(e))
    return {"exit": code, "text": (out + err).strip()[-600:]}


def _capabilities(look: Look) -> "dict[str, str]":
    """UUID -> compute capability: the one thing the XML lacks."""
    out = look.run("nvidia-smi", "--query-gpu=uuid,compute_cap", "--format=csv,noheader", limit=5.0)
    rows = [line.split(",") for line in out.splitlines()]
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}


def parse(text: str, capabilities: "Any") -> "dict[str, Any]":
    try:
        root = ET.fromstring(text)  # noqa: S314 - nvidia-smi's own output, run as this user
    except ET.ParseError as e:
        raise LookFailed(f"nvidia-smi printed no valid XML: {e}") from e
    driver = {"library_version": _text(root, "driver_version"), "cuda_version": _text(root, "cuda_version")}
    gpus = [_Card(node, capabilities).facts(i) for i, node in enumerate(root.findall("gpu"))]
    return {"driver": dict(driver, source="nvidia-smi"), "gpus": gpus}


def _text(node: "Any", *paths: str) -> "Any":
    for path in paths:
        found = (node.findtext(path) or "").strip()
        if found and found not in ("N/A", "[N/A]") and "deprecated" not in found:
            return found
    return missing(f"nvidia-smi shows no {paths[0]}")


class _Card:
    def __init__(self, node: "Any", capabilities: "Any") -> None:
        self.node = node
        self.capabilities = capabilities

    def text(self, *paths: str) -> "Any":
        return _text(self.node, *paths)

    def number(self, *paths: str, scale: int = 1) -> "Any":
        """The number before a unit: ``143771 MiB``, ``16x``, ``78.13 W``."""
        value = self.text(*paths)
        match = re.match(r"-?[\d.]+", value) if isinstance(value, str) else None
        if not match:
            return value if isinstance(value, dict) else missing(f"nvidia-smi shows {value!r}")
        return float(match.group()) if "." in match.group() else int(match.group()) * scale

    def flag(self, *paths: str) -> "Any":
        value = self.text(*paths)
        known = {"Enabled": True, "Disabled": False, "Yes": True, "No": False}
        return known.get(value, missing(f"nvidia-smi shows {value!r}")) if isinstance(value, str) else value

    def facts(self, index: int) -> "dict[str, Any]":
        return dict(
            self._identity(),
            index=index,
            error=None,
            **dict(self._memory(), **self._health(), **self._speed()),
        )

    def _identity(self) -> "dict[str, Any]":
        uuid = self.text("uuid")
        by_uuid = self.capabilities
        known = (
            by_uuid if "missing" in by_uuid else by_uuid.get(uuid, missing("nvidia-smi shows no compute_cap"))
        )
        return {
            "name": self.text("product_name"),
            "uuid": uuid,
            "cc": known,
            "pci": (self.node.get("id") or "").lower(),
            "minor": self.number("minor_number"),
            "vbios": self.text("vbios_version"),
            "persistence": self.flag("persistence_mode"),
            "compute_mode": self._compute_mode(),
            "mig": self.flag("mig_mode/current_mig"),
            "mig_pending": self.flag("mig_mode/pending_mig"),
        }

    def _compute_mode(self) -> "Any":
        value = self.text("compute_mode")
        return COMPUTE_MODES.index(value) if value in COMPUTE_MODES else value

    def _memory(self) -> "dict[str, Any]":
        names = ("total", "used", "free", "reserved")
        out = {"memory_" + n: self.number("fb_memory_usage/" + n, scale=MIB) for n in names}
        out["bar1_total"] = self.number("bar1_memory_usage/total", scale=MIB)
        out["processes"] = [_Card(p, {})._process() for p in self.node.findall("processes/process_info")]  # noqa: SLF001 - same class
        return out

    def _process(self) -> "dict[str, Any]":
        kind = {"C": "compute", "G": "graphics"}.get(str(self.text("type")), "compute")
        used = self.number("used_memory", scale=MIB)
        return {"pid": self.number("pid"), "bytes": used, "name": self.text("process_name"), "kind": kind}

    def _health(self) -> "dict[str, Any]":
        rows = "remapped_rows/remapped_row_"
        ecc = "ecc_errors/%s/dram_uncorrectable"
        return {
            "ecc": {
                "mode": self.flag("ecc_mode/current_ecc"),
                "mode_pending": self.flag("ecc_mode/pending_ecc"),
                "volatile_uncorrected": self.number(ecc % "volatile", "ecc_errors/volatile/double_bit/total"),
                "aggregate_uncorrected": self.number(
                    ecc % "aggregate", "ecc_errors/aggregate/double_bit/total"
                ),
                "volatile_corrected": self.number("ecc_errors/volatile/dram_correctable"),
            },
            "remapped": {
                "correctable": self.number(rows + "corr"),
                "uncorrectable": self.number(rows + "unc"),
                "pending": self.flag(rows + "pending"),
                "failed": self.flag(rows + "failure"),
            },
            "retired_pages": self.number("retired_pages/double_bit_retirement/retired_count"),
            "retired_pending": self.flag(
                "retired_pages/pending_retirement", "retired_pages/pending_blacklist"
            ),
            "temperature": self.number("temperature/gpu_temp"),
            "recovery_action": self._recovery(),
        }

    def _recovery(self) -> "Any":
        value = self.text("gpu_recovery_action")
        return value.lower().replace(" ", "_") if isinstance(value, str) else value

    def _speed(self) -> "dict[str, Any]":
        link = "pci/pci_gpu_link_info/"
        return {
            "clocks": {
                "sm": self.number("clocks/sm_clock"),
                "sm_max": self.number("max_clocks/sm_clock"),
                "mem": self.number("clocks/mem_clock"),
                "mem_max": self.number("max_clocks/mem_clock"),
            },
            "throttle": self._throttle(),
            "power": self.number(*[p + "/" + d for p in POWER for d in DRAW]),
            "power_limit": self.number(*[p + "/" + d for p in POWER for d in LIMIT]),
            "power_default": self.number(*[p + "/default_power_limit" for p in POWER]),
            "utilization": self.number("utilization/gpu_util"),
            "pcie": {
                "gen": self.number(link + "pcie_gen/current_link_gen"),
                "gen_max": self.number(link + "pcie_gen/max_link_gen"),
                "width": self.number(link + "link_widths/current_link_width"),
                "width_max": self.number(link + "link_widths/max_link_width"),
            },
            "nvlinks_active": missing("nvidia-smi -q shows no NVLink states"),
            "fabric": self._fabric(),
        }

    def _fabric(self) -> "dict[str, Any]":
        state, status = self.text("fabric/state"), self.text("fabric/status")
        if isinstance(state, str):
            state = state.lower().replace(" ", "_")
        return {"state": state, "status": 0 if status == "Success" else status}

    def _throttle(self) -> "Any":
        found, known = [], False
        for family in ("clocks_event_reasons", "clocks_throttle_reasons"):
            for tag, name in EVENTS.items():
                value = self.text(f"{family}/{family[:-1]}_{tag}")
                known = known or isinstance(value, str)
                if value == "Active":
                    found.append(name)
        return found if known else missing("nvidia-smi shows no clock event reasons")
