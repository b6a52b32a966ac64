"""The probe as it travels: run by an interpreter of its own on a made-up root, decoded, asked for facts."""

import ast
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from checks.facts import HostFacts, Known, Missing
from checks.probe import pack
from checks.probe.decode import decode
from checks.probe.onhost import driver, kernel_log, main, smi, storage, units
from checks.probe.onhost.base import Look, LookFailed
from checks.probe.pack import payload

CANARY = "hf_CanaryCanaryCanary123"
HOSTS = Path(__file__).parent / "hosts"
XML = (HOSTS / "nvidia-smi-h200x2-580.xml").read_text()

ROOT = tomllib.loads((Path(__file__).parent / "probe_root.toml").read_text())


def make_root(root: Path) -> Path:
    for name, text in ROOT["files"].items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("CANARY", CANARY))
    tools = root / "usr/bin"
    tools.mkdir(parents=True)
    for name, body in ROOT["tools"].items():
        # The made-up root has no shell or cat of its own: the shims run with this machine's.
        (tools / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
        (tools / name).chmod(0o755)
    (tools / "smi.xml").write_text(XML)
    (root / "proc/4242/fd").mkdir()
    (root / "proc/4242/fd/3").symlink_to("socket:[777]")
    inode = (root / "var/lib/eyas/lock/flock").stat().st_ino
    (root / "proc/locks").write_text(
        f"1: POSIX ADVISORY READ 5 08:01:7 0 EOF\n2: FLOCK ADVISORY WRITE 9 08:01:{inode} 0 EOF\n"
    )
    (root / "var/lib/eyas/current").mkdir()
    (root / "var/lib/eyas/current/a").symlink_to("../releases/r1")
    return root


def run(params: dict[str, Any], python: str = sys.executable) -> HostFacts:
    done = subprocess.run(
        [python, "-I", "-"], input=payload(params), capture_output=True, check=True, timeout=30
    )
    assert done.stderr == b""
    assert CANARY.encode() not in done.stdout
    return decode(b"Welcome!\nlast login today\n" + done.stdout + b"bye\n", "gpu01", time.time())


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> HostFacts:
    root = make_root(tmp_path_factory.mktemp("root"))
    folders = ["/", "/opt/eyas/envs", "/var/lib/none/at/all"]
    return run(
        {"root": str(root), "folders": folders, "files": ["/etc/eyas/a.env", "/etc/eyas/b", "/etc/eyas"]}
    )


KNOWN = {
    "os.id": "ubuntu",
    "os.version_id": "24.04",
    "os.boot_id": "abc",
    "os.cmdline": ["intel_iommu=on"],
    "cpu.model": "Test CPU",
    "cpu.flags": ["avx2", "amx_bf16"],
    "memory.total": 1024000,
    "cgroup.version": 2,
    "cgroup.memory_max": 1 << 30,
    "disks.1.exists": True,
    "disks.2.exists": False,
    "disks.2.nearest": "/var/lib",
    "shm.files.0.name": "vllm_dist_x",
    "tools.rsync": None,
    "tools.systemctl": "/usr/bin/systemctl",
    "driver.module_version": "580.159.04",
    "driver.module_open": True,
    "driver.module_file.version": "580.173.02",
    "driver.package": "nvidia-driver-580-server-open",
    "driver.holds": ["nvidia-driver-580-server-open"],
    "driver.fabric_manager.version": "580.159.04-1",
    "driver.fabric_manager.active": "failed",
    "driver.devices.0.kind": "nvswitch",
    "driver.devices.1.device": "0x2335",
    "driver.reboot_required": {"required": True, "packages": ["linux-image-6.8"]},
    "driver.secure_boot": False,
    "driver.source": "nvidia-smi",
    "driver.library_version": "580.159.04",
    "driver.unattended_upgrades.blacklist": ["nvidia"],
    "gpus.0.memory_total": 143771 << 20,
    "gpus.0.cc": "9.0",
    "gpus.1.fabric.state": "completed",
    "gpus.0.throttle": ["idle"],
    "xid.0.code": 79,
    "xid.0.pci": "0000:06:00",
    "cuda.lib_versions": ["13"],
    "eyas.root": True,
    "eyas.current": {"a": "r1"},
    "eyas.lock_holder": {"owner": "ann@laptop"},
    "eyas.releases.0.deployment": "a",
    "eyas.releases.1": {"id": "r2", "complete": False},
    "eyas.envs.0.complete": True,
    "eyas.envs.0.torch": "2.14.0",
    "eyas.envs.2.complete": False,
    "eyas.weights.0.partial_files": 1,
    "eyas.weights.0.complete": False,
    "eyas.weights.1.complete": True,
    "eyas.weights.1.bytes": 5,
    "eyas.user": None,
    "eyas.uv": ["0.9.1"],
}
MISSING = {
    "gpus.1.cc": "compute_cap",
    "p2p": "nvidia-smi shows no peer access",
    "gpus.0.retired_pages": "retired_count",
    "eyas.envs.1.complete": "not JSON",
    "os.nonsense": "not probed",
}


@pytest.mark.parametrize(("path", "value"), KNOWN.items())
def test_known(facts: HostFacts, path: str, value: Any) -> None:
    assert facts.get(path) == Known(value)


@pytest.mark.parametrize(("path", "why"), MISSING.items())
def test_missing_with_its_reason(facts: HostFacts, path: str, why: str) -> None:
    fact = facts.get(path)
    assert isinstance(fact, Missing)
    assert why in fact.reason


def test_ports_name_process_and_unit(facts: HostFacts) -> None:
    ssh, ours = facts.tree["ports"]
    if ssh["port"] != 22:
        ssh, ours = ours, ssh
    assert (ours["port"], ours["address"], ours["pid"]) == (8000, "127.0.0.1", 4242)
    assert (ours["process"], ours["unit"]) == ("vllm", "eyas-a.service")
    assert (ssh["address"], "missing" in ssh["pid"]) == ("::", True)


def test_unit_as_it_really_runs(facts: HostFacts) -> None:
    unit = facts.tree["eyas"]["units"]["eyas-a.service"]
    assert (unit["active"], unit["restarts"], unit["main_pid"], unit["timeout_start_s"]) == (
        "active",
        3,
        4242,
        90,
    )
    assert unit["limits"] == {"nofile": 65536, "memlock": None}
    assert unit["memory_current"] == {"missing": "not accounted"}
    assert unit["argv"][3:] == ["--api-key", "***", "--max-num-batched-tokens", "8192", "--hf-token=***"]
    assert unit["environment"] == {
        "PATH": "/bin",
        "HF_TOKEN": "***",
        "VLLM_API_KEY": "***",
        "FOO": "***",
        "CUDA_HOME": "/usr/local/cuda",
    }
    assert len(unit["fragment_sha256"]) == 64


def test_a_lock_file_left_behind_is_no_lock(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    (root / "proc/locks").write_text("")
    assert run({"root": str(root)}).get("eyas.lock_holder") == Known(None)


def test_managed_files(facts: HostFacts) -> None:
    files = facts.tree["eyas"]["files"]
    assert files["/etc/eyas/b"] is None
    assert files["/etc/eyas/a.env"]["bytes"] == 4
    assert len(files["/etc/eyas/a.env"]["sha256"]) == 64
    assert "regular" in files["/etc/eyas"]["missing"]


def test_everything_is_within_the_documented_shape(facts: HostFacts) -> None:
    assert facts.tree["probe"]["ms"] < 20000
    again = HostFacts.from_json(facts.to_json())
    assert again.tree == facts.tree


def test_an_empty_root_is_described_not_crashed_on(tmp_path: Path) -> None:
    tree = run({"root": str(tmp_path)}).tree
    assert tree["memory"] == {"missing": f"{tmp_path}/proc/meminfo does not exist"}
    assert tree["driver"]["devices"] == []
    assert "does not exist" in tree["driver"]["packages"]["missing"]
    assert "no kernel log" in tree["xid"]["missing"]
    assert tree["eyas"]["root"] is False
    assert "probe bug" not in json.dumps(tree)


@pytest.mark.process
def test_a_hanging_part_costs_its_own_facts_only(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    (root / "usr/bin/systemctl").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (root / "var/log/kern.log").unlink()
    (root / "var/log/kern.log").symlink_to("/dev/tty0/none")
    started = time.monotonic()
    tree = run({"root": str(root), "time_scale": 0.2}).tree
    assert time.monotonic() - started < 10
    assert "systemctl gave no answer" in tree["services"]["missing"]
    assert tree["os"]["id"] == "ubuntu"


def test_parses_with_the_oldest_grammar() -> None:
    for path in pack.ONHOST.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 6))
    ast.parse(pack._SCRIPT, feature_version=(3, 6))


def test_uses_nothing_that_a_bare_host_lacks() -> None:
    for path in pack.ONHOST.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert all(a.name.split(".")[0] in sys.stdlib_module_names for a in node.names), path
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] in sys.stdlib_module_names, path


def test_the_payload_is_small_and_plain() -> None:
    data = payload({"files": ["/ü"]})
    assert len(data) < 120_000
    data.decode("ascii")


def test_a_section_that_dies_says_so() -> None:
    section = main._Section("gpus", 1, 0.0, 30.0, ("gpus", "driver.nvml_error"))
    section.data = b'"nvmlInit"\n"nvmlDeviceGetName of card 1"\n{"gp'
    facts = section.facts()
    assert "without an answer (asking nvmlDeviceGetName of card 1)" in facts["gpus"]["missing"]
    assert facts["driver"]["nvml_error"] == facts["gpus"]


def test_too_much_output_leaves_out_the_largest_part() -> None:
    body = main.fit({"ports": ["x" * 500] * 100, "os": {"id": "ubuntu"}}, cap=2000)
    tree = json.loads(body)
    assert tree["os"] == {"id": "ubuntu"}
    assert "left out" in tree["ports"]["missing"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("infinity", None), ("1min 30s", 90.0), ("2h", 7200.0), ("500ms", 0.5), ("1d 1h", 90000.0), ("0", None)],
)
def test_systemd_times(text: str, value: float | None) -> None:
    if text == "0":
        with pytest.raises(LookFailed):
            units.seconds(text)
    else:
        assert units.seconds(text) == value


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        (["--api-key", "a", "b", "--port", "1"], ["--api-key", "***", "***", "--port", "1"]),
        (["--api-key=a", "--x"], ["--api-key=***", "--x"]),
        (["--max-tokens", "5"], ["--max-tokens", "5"]),
        (["--tokenizer", "org/m"], ["--tokenizer", "org/m"]),
        (["https://bob:pw@mirror/x", "sk-abcdefghij"], ["https://***mirror/x", "***"]),
        (["--ssl-keyfile", "/k"], ["--ssl-keyfile", "/k"]),
    ],
)
def test_secrets_in_argv(argv: list[str], masked: list[str]) -> None:
    assert units.masked_argv(argv) == masked


def test_xml_of_older_drivers() -> None:
    """525 spelled power and clock reasons differently; the numbers must still arrive."""
    old = (
        XML.replace("gpu_power_readings", "power_readings")
        .replace("instant_power_draw", "power_draw")
        .replace("current_power_limit", "power_limit")
        .replace("clocks_event_reason", "clocks_throttle_reason")
    )
    new, older = (smi.parse(x, {})["gpus"][0] for x in (XML, old))
    assert (new["power"], new["power_limit"]) == (78.13, 700)
    assert older == new


def test_xml_that_is_none() -> None:
    with pytest.raises(LookFailed, match="no valid XML"):
        smi.parse("<nvidia_smi_log><gpu>", {})


def test_access_control_bits() -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 0x140 << 20).to_bytes(4, "little")
    config[0x140:0x144] = (0x000D).to_bytes(4, "little")
    config[0x146:0x148] = (0x1D).to_bytes(2, "little")
    assert driver._acs_control(bytes(config)) == 0x1D
    assert driver._acs_control(bytes(4096)) == 0
    with pytest.raises(LookFailed):
        driver._acs_control(bytes(64))


def test_endless_capability_chain_ends() -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert driver._acs_control(bytes(config)) == 0


def test_the_innermost_mount_counts() -> None:
    mounts = [("/", "ext4", []), ("/var", "xfs", []), ("/var/lib", "zfs", ["ro"])]
    assert storage._mount_of("/var/lib/eyas", mounts)[0] == "/var/lib"
    assert storage._mount_of("/var/libx", mounts)[0] == "/var"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "[ 12.3] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.",
    ],
)
def test_xid_lines(line: str) -> None:
    found = kernel_log._xid(1.0, line)
    assert found is not None
    assert (found["code"], found["pci"]) == (79, "0000:c1:00")


def test_look_says_why(tmp_path: Path) -> None:
    look = Look({"root": str(tmp_path)}, time.monotonic() + 5)
    with pytest.raises(LookFailed, match="no-such-tool is not installed"):
        look.run("no-such-tool")
