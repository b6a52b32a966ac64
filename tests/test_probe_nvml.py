"""Cards through the real pynvml over a made-up driver: values, old drivers, lost and consumer cards."""

import ctypes
import time
from typing import Any

import pynvml
import pytest

from checks.probe.onhost import nvml
from checks.probe.onhost.base import Look
from tests.nvml_fake import Fail, FakeLibrary

CARD = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetMemoryInfo_v2": {
        "total": 150 << 30,
        "used": 1 << 30,
        "free": 148 << 30,
        "reserved": 1 << 30,
    },
    "nvmlDeviceGetMemoryInfo": {"total": 150 << 30, "used": 2 << 30, "free": 148 << 30},
    "nvmlDeviceGetCurrentClocksEventReasons": 0x41,
    "nvmlDeviceGetRemappedRows": (0, 1, 1, 0),
    "nvmlDeviceGetEccMode": (1, 1),
    "nvmlDeviceGetPowerUsage": 78130,
    "nvmlDeviceGetMigMode": (0, 1),
    "nvmlDeviceGetGpuFabricInfoV": {"state": 3, "status": 0},
    "nvmlDeviceGetP2PStatus": 0,
    "nvmlDeviceGetTopologyCommonAncestor": 50,
}


def library(
    values: dict[str, Any] | None = None, absent: tuple[str, ...] = (), cards: int = 2
) -> FakeLibrary:
    system = {
        "nvmlSystemGetDriverVersion": "580.95.05",
        "nvmlSystemGetCudaDriverVersion_v2": 13000,
        "nvmlDeviceGetCount_v2": cards,
    }
    per_card = {f"{i}.{k}": v for i in range(cards) for k, v in CARD.items()}
    return FakeLibrary({**system, **per_card, **(values or {})}, absent)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``probe(library)`` -> what the probe's card part says."""

    def run(fake: FakeLibrary) -> dict[str, Any]:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
        monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlLib", fake)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return nvml.collect(Look({}, time.monotonic() + 5), lambda: pynvml)

    return run


def test_values_come_through(probe: Any) -> None:
    facts = probe(library())
    card = facts["gpus"][1]
    assert facts["driver"]["nvml_error"] is None
    assert facts["driver"]["cuda_version"] == "13.0"
    assert card["name"] == "NVIDIA H200"
    assert card["cc"] == "9.0"
    assert card["memory_reserved"] == 1 << 30
    assert card["throttle"] == ["idle", "hw_thermal"]
    assert card["remapped"] == {"correctable": 0, "uncorrectable": 1, "pending": True, "failed": False}
    assert (card["mig"], card["mig_pending"]) == (False, True)
    assert card["power"] == 78.13
    assert card["fabric"] == {"state": "completed", "status": 0}
    assert facts["p2p"] == [["self", "ok"], ["ok", "self"]]
    assert facts["topology"][0][1] == "system"


def test_a_consumer_card_lacks_things_without_losing_others(probe: Any) -> None:
    card = probe(library({"0.nvmlDeviceGetEccMode": Fail(3), "0.nvmlDeviceGetMigMode": Fail(3)}))["gpus"][0]
    assert card["ecc"]["mode"] == {"missing": "not supported by this card"}
    assert card["mig"] == {"missing": "not supported by this card"}
    assert card["name"] == "NVIDIA H200"


def test_an_old_driver_is_named_call_by_call(probe: Any) -> None:
    absent = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetRemappedRows",
    )
    card = probe(library(absent=absent))["gpus"][0]
    assert card["memory_used"] == 2 << 30  # the older call still answers
    old = {"missing": "driver too old for this query"}
    assert card["memory_reserved"] == old
    assert card["processes"] == old
    assert card["fabric"]["state"] == old
    assert card["recovery_action"] == old
    assert card["remapped"]["failed"] == old


def test_a_lost_card_costs_itself_alone(probe: Any) -> None:
    facts = probe(library({"1.lost": True}))
    assert facts["gpus"][1] == {"index": 1, "error": "GPU is lost"}
    assert facts["gpus"][0]["name"] == "NVIDIA H200"
    assert facts["p2p"][0] == ["self", "lost"]


@pytest.mark.parametrize("code", [4, 9, 17, 18, 999])
def test_a_failing_start_keeps_its_code(probe: Any, code: int) -> None:
    facts = probe(library({"nvmlInitWithFlags": code}))
    assert facts["driver"]["nvml_error_code"] == code
    assert "NVML does not answer" in facts["gpus"]["missing"]


def test_the_loaders_own_words_are_kept() -> None:
    facts = nvml.collect(Look({}, time.monotonic() + 5), lambda: pynvml)
    if facts["driver"]["nvml_error"] is None:
        pytest.skip("this machine has a driver")
    assert "libnvidia-ml.so.1" in facts["driver"]["nvml_error"]
    assert facts["driver"]["nvml_error_code"] == 12
