"""The simulated card without any host: the compiled library, unmodified pynvml, nvidia-smi, profiles."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import UsageError
from tests.lab.card.build import compile_library, nvidia_smi
from tests.lab.profiles import drivers, fault_names, parse

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to compile the card with")

# Many profiles in one process: the library reads its profile anew at each init.
ASK = """
import json, os, sys, pynvml as n
def plain(v):
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    if v is None or isinstance(v, (int, str)):
        return v
    return {k: getattr(v, k) for k, *_ in v._fields_} if hasattr(v, "_fields_") else vars(v)
def ask(f, *a):
    try:
        return plain(getattr(n, f)(*a))
    except n.NVMLError as e:
        return {"error": e.value}
def cards(calls):
    for i in range(n.nvmlDeviceGetCount()):
        try:
            h = n.nvmlDeviceGetHandleByIndex(i)
        except n.NVMLError as e:
            yield {"error": e.value}
        else:
            yield [ask(f, h, *a) for f, *a in calls]
for path, calls in json.load(sys.stdin):
    os.environ["EYAS_LAB_GPU_PROFILE"] = path
    failed = ask("nvmlInit")
    print(json.dumps(failed or list(cards(calls)), default=lambda b: b.decode()))
"""
VERSIONS = {"library": "580.159.04", "module": "580.159.04"}

# profile -> what is asked of each card -> what card 0 answers. {"error": code} is NVML's own.
HEALTHY: dict[str, dict[tuple[Any, ...], Any]] = {
    "h200x2": {
        ("nvmlDeviceGetName",): "NVIDIA H200",
        # 143771 MiB in all, 616 MiB of it the driver's own, as measured.
        ("nvmlDeviceGetMemoryInfo",): {"total": 143771 << 20, "free": 143155 << 20, "used": 616 << 20},
        ("nvmlDeviceGetCudaComputeCapability",): [9, 0],
        ("nvmlDeviceGetPowerUsage",): 78130,
        ("nvmlDeviceGetMigMode",): [0, 0],
        ("nvmlDeviceGetTotalEccErrors", 1, 0): 0,
        ("nvmlDeviceGetRemappedRows",): [0, 0, 0, 0],
        ("nvmlDeviceGetNvLinkState", 17): 1,
        ("nvmlDeviceGetNvLinkState", 18): {"error": 2},
        ("nvmlDeviceGetFanSpeed",): {"error": 3},
        ("nvmlDeviceGetClockInfo", 2): 3201,
        ("nvmlDeviceGetComputeRunningProcesses",): [],
        ("nvmlDeviceGetUtilizationRates",): {"gpu": 0, "memory": 0},
    },
    "rtx4090x8": {("nvmlDeviceGetName",): "NVIDIA GeForce RTX 4090", ("nvmlDeviceGetMigMode",): {"error": 3}},
    "rtx4090": {("nvmlDeviceGetCudaComputeCapability",): [8, 9], ("nvmlDeviceGetEccMode",): [0, 0]},
    "a100-80x2": {("nvmlDeviceGetArchitecture",): 7, ("nvmlDeviceGetNvLinkState", 11): 1},
    "none": {},
}
SICK: dict[str, dict[tuple[Any, ...], Any]] = {
    "xid79": {(): {"error": 15}},
    "inforom": {(): {"error": 14}},
    "needs-reset": {(): {"error": 16}},
    "ecc": {("nvmlDeviceGetTotalEccErrors", 1, 0): 3, ("nvmlDeviceGetRemappedRows",): [0, 1, 1, 0]},
    "remap-failed": {("nvmlDeviceGetRemappedRows",): [0, 8, 0, 1]},
    "mig": {("nvmlDeviceGetMigMode",): [1, 1]},
    "throttle": {("nvmlDeviceGetCurrentClocksEventReasons",): 0x48, ("nvmlDeviceGetTemperature", 0): 93},
    "power-cap": {("nvmlDeviceGetEnforcedPowerLimit",): 150000},
    "pcie-x1": {("nvmlDeviceGetCurrPcieLinkWidth",): 1, ("nvmlDeviceGetMaxPcieLinkWidth",): 16},
    "nvlink-down": {("nvmlDeviceGetNvLinkState", 3): 0, ("nvmlDeviceGetNvLinkState", 4): 1},
    "busy": {
        ("nvmlDeviceGetMemoryInfo",): {"total": 143771 << 20, "free": 122675 << 20, "used": 21096 << 20},
        ("nvmlDeviceGetComputeRunningProcesses",): [
            {
                "pid": 4242,
                "usedGpuMemory": 20 << 30,
                "gpuInstanceId": 2**32 - 1,
                "computeInstanceId": 2**32 - 1,
            }
        ],
    },
}
INIT = {
    "nvml-unknown": ({}, 999),
    "xid79": ({"module": "570.172.08"}, 18),
    "busy": ({"err.nvmlInit": "9"}, 9),
}
CASES = HEALTHY | {f"h200x2+{fault}": wanted for fault, wanted in SICK.items()}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    compile_library(folder / "libnvidia-ml.so.1", 580)
    nvidia_smi(folder / "nvidia-smi")
    return folder


def write_profile(folder: Path, profile: str, **more: str) -> Path:
    """Off a lab host the profile also says what library and module are."""
    path = folder / f"profile-{len(list(folder.iterdir()))}"
    path.write_text(parse(profile).text + "".join(f"{k}={v}\n" for k, v in {**VERSIONS, **more}.items()))
    return path


def ask(library: Path, cases: list[tuple[Path, list[tuple[Any, ...]]]]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([(str(path), calls) for path, calls in cases]),
        env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def smi(library: Path, profile: str, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(library / "nvidia-smi"), *args]
    path = write_profile(library, profile, **more)
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "EYAS_LAB_GPU_PROFILE": str(path)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=20)


@pytest.fixture(scope="module")
def answers(library: Path) -> dict[str, Any]:
    cases = [(write_profile(library, name), [c for c in wanted if c]) for name, wanted in CASES.items()]
    return dict(zip(CASES, ask(library, cases), strict=True))


@pytest.mark.process
@needs_gcc
@pytest.mark.parametrize("profile", CASES)
def test_unmodified_pynvml_is_told_the_profile(answers: dict[str, Any], profile: str) -> None:
    wanted, cards = CASES[profile], answers[profile]
    assert len(cards) == int(parse(profile).keys["count"])
    if cards:
        assert cards[0] == (wanted[()] if () in wanted else list(wanted.values()))
    assert "error" not in cards[1:]


@pytest.mark.process
@needs_gcc
@pytest.mark.parametrize("fault", INIT)
def test_a_failing_init(library: Path, fault: str) -> None:
    more, code = INIT[fault]
    assert ask(library, [(write_profile(library, f"rtx4090+{fault}", **more), [])]) == [{"error": code}]
    assert smi(library, f"rtx4090+{fault}", **more).returncode == code % 256


@pytest.mark.process
@needs_gcc
def test_a_hang_really_hangs(library: Path) -> None:
    path = write_profile(library, "rtx4090+hang-init")
    code = f"import ctypes; ctypes.CDLL('{library}/libnvidia-ml.so.1').nvmlInitWithFlags(0)"
    argv, env = [sys.executable, "-c", code], {"EYAS_LAB_GPU_PROFILE": str(path)}
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(argv, env=env, timeout=0.4, check=False)


@pytest.mark.process
@needs_gcc
def test_an_old_branch_lacks_what_it_lacked(tmp_path: Path) -> None:
    compile_library(tmp_path / "libnvidia-ml.so.1", 535)
    script = (
        "import pynvml as n\nn.nvmlInit()\nh=n.nvmlDeviceGetHandleByIndex(0)\n"
        "try:\n n.nvmlDeviceGetTemperatureV(h, 0)\nexcept n.NVMLError as e:\n print(e.value)"
    )
    path = write_profile(tmp_path, "rtx4090")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "EYAS_LAB_GPU_PROFILE": str(path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "13"


@pytest.mark.process
@needs_gcc
def test_nvidia_smi_agrees_with_nvml(library: Path) -> None:
    query = "--query-gpu=index,name,memory.total,compute_cap,power.limit,mig.mode.current"
    done = smi(library, "a100-80x2", query, "--format=csv,noheader,nounits")
    assert done.stdout.splitlines() == [
        f"{i}, NVIDIA A100 80GB PCIe, 81920, 8.0, 300.00, Disabled" for i in (0, 1)
    ]
    assert smi(library, "a100-80x2", "--query-gpu=colour").returncode == 2
    assert "A100" in smi(library, "a100-80x2").stdout
    assert smi(library, "a100-80x2", "-L").stdout.count("UUID") == 2
    assert "NV12" in smi(library, "a100-80x2", "topo", "-m").stdout


@pytest.mark.process
@needs_gcc
def test_xml_has_the_tags_and_values_of_a_real_h200(library: Path) -> None:
    root = ET.fromstring(smi(library, "h200x2", "-q", "-x").stdout)
    assert root.findtext("driver_version") == "580.159.04"
    assert root.findtext("cuda_version") == "13.0"
    first = root.findall("gpu")[0]
    wanted = {
        "product_name": "NVIDIA H200",
        "fb_memory_usage/total": "143771 MiB",
        "fb_memory_usage/reserved": "616 MiB",
        "fb_memory_usage/free": "143155 MiB",
        "pci/pci_bus_id": "00000000:00:06.0",
        "pci/pci_device_id": "233510DE",
        "pci/pci_gpu_link_info/link_widths/current_link_width": "16x",
        "gpu_power_readings/instant_power_draw": "78.13 W",
        "clocks/sm_clock": "345 MHz",
        "max_clocks/sm_clock": "1980 MHz",
        "ecc_mode/current_ecc": "Enabled",
        "mig_mode/current_mig": "Disabled",
        "fabric/state": "Completed",
        "temperature/gpu_temp": "36 C",
        "clocks_event_reasons/clocks_event_reason_gpu_idle": "Active",
    }
    assert {path: first.findtext(path) for path in wanted} == wanted


@pytest.mark.parametrize("fault", fault_names())
def test_every_fault_says_what_it_is(fault: str) -> None:
    profile = parse(f"h200x8+{fault}")
    assert profile.says
    assert not any("{" in line for line in (*profile.kernel_log, *profile.packages))
    assert set(SICK) <= set(fault_names())


@pytest.mark.parametrize(
    "name", ["", "rtx5090", "rtx4090x0", "rtx4090x9", "rtx4090x2+", "rtx4090+nope", "x2"]
)
def test_an_unknown_profile_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as e:
        parse(name)
    assert e.value.hint


def test_driver_branches_are_whole() -> None:
    for branch, driver in drivers().items():
        assert driver["version"].startswith(f"{branch}.")
        assert driver["cuda"] // 1000 >= 12
