"""NVML through ctypes, by symbol; a value the card doesn't have is None."""

import ctypes
from typing import Any

__all__ = ["MIB", "Bar", "Card", "Failed", "Field", "Nvml", "Process", "on_off", "unit", "watts"]

MIB = 1 << 20


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


def unit(value: Any, suffix: str, none: str = "N/A") -> str:
    return none if value is None else f"{value} {suffix}".strip()


def watts(milliwatts: Any, none: str = "N/A") -> str:
    return none if milliwatts is None else f"{milliwatts / 1000:.2f} W"


def on_off(value: Any, none: str = "N/A") -> str:
    return none if value is None else ("Enabled" if value else "Disabled")
