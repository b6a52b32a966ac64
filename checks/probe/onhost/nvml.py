"""Cards through NVML, by the pynvml file that travels along. Runs in a child: a sick card can hang."""

import ctypes
import os
import re

from .base import Look, attempt, missing
from .guard import Guard, gone
from .ports import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_NOT_FOUND = 12
P2P = [
    "ok",
    "chipset_not_supported",
    "gpu_not_supported",
    "ioh_not_supported",
    "disabled_by_regkey",
    "not_supported",
    "unknown",
]
TOPOLOGY = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
THROTTLE = [
    "idle",
    "app_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display",
]
RECOVERY = [
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "imex",
    "bus_reset",
    "system_reboot",
]
FABRIC = ("not_supported", "not_started", "in_progress", "completed")
# Whole names: what isn't named here of pynvml is not sent along.
PROCESSES = (
    ("compute", ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")),
    ("graphics", ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2")),
)
RECOVERY_FIELD = 230
MOST_LINKS = 36


def collect(look: Look, nvml: "Callable[[], Any]") -> "dict[str, Any]":
    """``nvml`` imports pynvml: only paid for where the library loads."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as e:
        return failed(f"cannot load {LIBRARY}: {e}", LIBRARY_NOT_FOUND)
    pynvml = nvml()
    look.note("nvmlInit")
    try:
        pynvml.nvmlInit()
    except Exception as e:
        return failed(f"{e}", getattr(e, "value", None), library_version=attempt(_library_version))
    return _Nvml(look, pynvml).all()


def failed(text: str, code: "Any", library_version: "Any" = None) -> "dict[str, Any]":
    gone = missing("NVML does not answer: " + text)
    driver = {
        "nvml_error": text,
        "nvml_error_code": code,
        "library_version": library_version,
        "cuda_version": gone,
        "nvml_version": gone,
        "source": None,
    }
    return {"driver": driver, "gpus": gone, "p2p": gone, "topology": gone}


def _library_version() -> "str | None":
    """The version in the real name of the loaded file, as every driver package names it."""
    with open("/proc/self/maps") as f:
        paths = {line.split()[-1] for line in f if "libnvidia-ml.so" in line}
    found = re.findall(r"libnvidia-ml\.so\.(\d+\.[\d.]+)", " ".join(os.path.realpath(p) for p in paths))
    return found[0] if found else None


class _Nvml(Guard):
    def all(self) -> "dict[str, Any]":
        count = self.ask("nvmlDeviceGetCount")
        driver = {
            "nvml_error": count["missing"] if gone(count) else None,
            "nvml_error_code": None,
            "library_version": attempt(_library_version) or self.ask("nvmlSystemGetDriverVersion"),
            "driver_version": self.ask("nvmlSystemGetDriverVersion"),
            "nvml_version": self.ask("nvmlSystemGetNVMLVersion"),
            "cuda_version": self._cuda(),
            "source": "nvml",
        }
        if gone(count):
            return {"driver": driver, "gpus": count, "p2p": count, "topology": count}
        handles = [self.ask("nvmlDeviceGetHandleByIndex", i) for i in range(count)]
        return {
            "driver": driver,
            "gpus": [self.gpu(i, h) for i, h in enumerate(handles)],
            "p2p": [[self._p2p(a, b) for b in handles] for a in handles],
            "topology": [[self._level(a, b) for b in handles] for a in handles],
        }

    def _cuda(self) -> "Any":
        answer = self.first(("nvmlSystemGetCudaDriverVersion_v2",), ("nvmlSystemGetCudaDriverVersion",))
        return answer if gone(answer) else f"{answer // 1000}.{answer % 1000 // 10}"

    def gpu(self, index: int, h: "Any") -> "dict[str, Any]":
        if gone(h):
            return {"index": index, "error": h["missing"]}
        out = {"index": index, "error": None}
        self.asking = f"card {index}"
        for part in (self._identity, self._memory, self._health, self._speed, self._links):
            out.update(part(h))
        return out

    def _identity(self, h: "Any") -> "dict[str, Any]":
        return {
            "name": self.ask("nvmlDeviceGetName", h),
            "uuid": self.ask("nvmlDeviceGetUUID", h),
            "cc": self.part(lambda v: f"{v[0]}.{v[1]}", "nvmlDeviceGetCudaComputeCapability", h),
            "pci": self.part(lambda v: _text(v.busId).lower(), "nvmlDeviceGetPciInfo", h),
            "minor": self.ask("nvmlDeviceGetMinorNumber", h),
            "vbios": self.ask("nvmlDeviceGetVbiosVersion", h),
            "persistence": self.part(bool, "nvmlDeviceGetPersistenceMode", h),
            "compute_mode": self.ask("nvmlDeviceGetComputeMode", h),
            "mig": self.part(lambda v: bool(v[0]), "nvmlDeviceGetMigMode", h),
            "mig_pending": self.part(lambda v: bool(v[1]), "nvmlDeviceGetMigMode", h),
        }

    def _memory(self, h: "Any") -> "dict[str, Any]":
        version = getattr(self.nvml, "nvmlMemory_v2", None)
        info = self.first(("nvmlDeviceGetMemoryInfo", h, version), ("nvmlDeviceGetMemoryInfo", h))
        names = ("total", "used", "free", "reserved")
        return {
            **{"memory_" + n: info if gone(info) else _field(info, n) for n in names},
            "bar1_total": self.part(lambda v: v.bar1Total, "nvmlDeviceGetBAR1MemoryInfo", h),
            "processes": self._processes(h),
        }

    def _processes(self, h: "Any") -> "Any":
        out = []
        for kind, calls in PROCESSES:
            found = self.first(*[(call, h) for call in calls])
            if gone(found):
                if kind == "compute":
                    return found
                continue
            out += [self._process(p, kind) for p in found]
        return out

    def _process(self, p: "Any", kind: str) -> "dict[str, Any]":
        """A pid of another container is not in this host's /proc: then NVML's name is all there is."""
        who = process(self.look, p.pid)
        if gone(who["name"]):
            who["name"] = self.ask("nvmlSystemGetProcessName", p.pid)
        used = missing("not permitted or not counted") if p.usedGpuMemory is None else p.usedGpuMemory
        return dict(who, pid=p.pid, bytes=used, kind=kind)

    def _health(self, h: "Any") -> "dict[str, Any]":
        rows = self.ask("nvmlDeviceGetRemappedRows", h)
        names = {"correctable": int, "uncorrectable": int, "pending": bool, "failed": bool}
        return {
            "ecc": {
                "mode": self.part(lambda v: bool(v[0]), "nvmlDeviceGetEccMode", h),
                "mode_pending": self.part(lambda v: bool(v[1]), "nvmlDeviceGetEccMode", h),
                "volatile_uncorrected": self.ask("nvmlDeviceGetTotalEccErrors", h, 1, 0),
                "aggregate_uncorrected": self.ask("nvmlDeviceGetTotalEccErrors", h, 1, 1),
                "volatile_corrected": self.ask("nvmlDeviceGetTotalEccErrors", h, 0, 0),
            },
            "remapped": {
                n: rows if gone(rows) else kind(rows[i]) for i, (n, kind) in enumerate(names.items())
            },
            "retired_pages": self._retired(h),
            "retired_pending": self.part(bool, "nvmlDeviceGetRetiredPagesPendingStatus", h),
            "temperature": self.ask("nvmlDeviceGetTemperature", h, 0),
            "recovery_action": self._recovery(h),
        }

    def _retired(self, h: "Any") -> "Any":
        counts = [self.part(len, "nvmlDeviceGetRetiredPages", h, cause) for cause in (0, 1)]
        bad = [c for c in counts if gone(c)]
        return bad[0] if bad else sum(counts)

    def _recovery(self, h: "Any") -> "Any":
        """What the driver itself asks for (reset, reboot): a field of recent drivers."""
        answer = self.ask("nvmlDeviceGetFieldValues", h, [RECOVERY_FIELD])
        if gone(answer):
            return answer
        value = answer[0]
        if value.nvmlReturn:
            return missing("driver too old for this query")
        return _name(RECOVERY, value.value.uiVal)

    def _speed(self, h: "Any") -> "dict[str, Any]":
        watts = lambda v: v / 1000.0  # noqa: E731 - three uses on three lines
        return {
            "clocks": {
                "sm": self.ask("nvmlDeviceGetClockInfo", h, 1),
                "sm_max": self.ask("nvmlDeviceGetMaxClockInfo", h, 1),
                "mem": self.ask("nvmlDeviceGetClockInfo", h, 2),
                "mem_max": self.ask("nvmlDeviceGetMaxClockInfo", h, 2),
            },
            "throttle": self._throttle(h),
            "power": self.part(watts, "nvmlDeviceGetPowerUsage", h),
            "power_limit": self.part(watts, "nvmlDeviceGetEnforcedPowerLimit", h),
            "power_default": self.part(watts, "nvmlDeviceGetPowerManagementDefaultLimit", h),
            "utilization": self.part(lambda v: v.gpu, "nvmlDeviceGetUtilizationRates", h),
        }

    def _throttle(self, h: "Any") -> "Any":
        calls = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        bits = self.first(*[(c, h) for c in calls])
        return bits if gone(bits) else [n for i, n in enumerate(THROTTLE) if bits >> i & 1]

    def _links(self, h: "Any") -> "dict[str, Any]":
        pcie = {
            "gen": "nvmlDeviceGetCurrPcieLinkGeneration",
            "gen_max": "nvmlDeviceGetMaxPcieLinkGeneration",
            "width": "nvmlDeviceGetCurrPcieLinkWidth",
            "width_max": "nvmlDeviceGetMaxPcieLinkWidth",
        }
        return {
            "pcie": {name: self.ask(call, h) for name, call in pcie.items()},
            "nvlinks_active": self._nvlinks(h),
            "fabric": self._fabric(h),
        }

    def _nvlinks(self, h: "Any") -> "Any":
        active = 0
        for link in range(MOST_LINKS):
            state = self.ask("nvmlDeviceGetNvLinkState", h, link)
            if gone(state):
                return active if link else state
            active += bool(state)
        return active

    def _fabric(self, h: "Any") -> "dict[str, Any]":
        info: Any = None
        answer: Any = missing("driver too old for this query")
        for struct, call in (
            ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV"),
            ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
            ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
        ):
            info = getattr(self.nvml, struct)()
            answer = self.ask(call, h, ctypes.byref(info))
            if not gone(answer):
                break
        if gone(answer):
            return {"state": answer, "status": answer}
        return {"state": _name(FABRIC, info.state), "status": info.status}

    def _p2p(self, a: "Any", b: "Any") -> "Any":
        if a is b or gone(a) or gone(b):
            return "self" if a is b else "lost"
        # The index is a literal: pynvml's own constant for "read" is a tuple by mistake.
        return self.part(lambda v: _name(P2P, v), "nvmlDeviceGetP2PStatus", a, b, 0)

    def _level(self, a: "Any", b: "Any") -> "Any":
        if a is b or gone(a) or gone(b):
            return "self" if a is b else "lost"
        return self.part(lambda v: TOPOLOGY.get(v, str(v)), "nvmlDeviceGetTopologyCommonAncestor", a, b)


def _field(info: "Any", name: str) -> "Any":
    return int(getattr(info, name)) if hasattr(info, name) else missing("driver too old for this query")


def _name(names: "Any", value: int) -> str:
    return names[value] if 0 <= value < len(names) else f"unknown {value}"


def _text(value: "Any") -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
