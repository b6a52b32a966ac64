"""The lab itself: hosts that are real enough, faults that do what they say, and nothing left behind."""

import importlib.util
import json
import subprocess
import time
from pathlib import Path

import pytest
from invoke import Collection, Program

import tasks
from inventory.errors import CheckRefused, EyasError, UsageError
from tests.lab import cgroups
from tests.lab.conftest import MakeLab
from tests.lab.hosts import SUDO_PASSWORD, Lab, foreign_labs, lab_names
from tests.lab.net import netns_names

pytestmark = pytest.mark.lab


def out(lab: Lab, *argv: str, host: str = "gpu01") -> str:
    """Through real ssh; the command must succeed."""
    done = lab.host(host).ssh(argv)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- hosts --------------------------------------------------------------------------------------------


def test_a_host_is_a_real_one(lab: Lab) -> None:
    assert out(lab, "hostname") == "gpu01"
    assert out(lab, "whoami") == "op"
    assert out(lab, "sudo", "-n", "whoami") == "root"
    assert out(lab, "systemctl", "is-system-running", "--wait") == "running"
    assert out(lab, ". /etc/os-release; echo $ID $VERSION_ID") == "ubuntu 24.04"
    assert out(lab, "python3", "-c", "'import sys, venv; print(sys.version_info >= (3, 11))'") == "True"


def test_a_host_reaches_the_operator_and_other_hosts_but_nothing_else(lab: Lab) -> None:
    assert "default" not in out(lab, "ip", "route")
    connect = "import socket as s; s.create_connection(('{}', 22), 2).recv(4)"
    assert lab.host("gpu01").run(["python3", "-c", connect.format(lab.host("gpu02").address)]).returncode == 0
    done = lab.host("gpu01").run(["python3", "-c", connect.format("198.51.100.1")], check=False)
    assert "Network is unreachable" in done.stderr
    forwarding = Path(f"/proc/sys/net/ipv4/conf/{lab.network.wire}/forwarding")
    assert forwarding.read_text().strip() == "0"


def test_inventory_is_what_ansible_reads(lab: Lab) -> None:
    import yaml

    tree = yaml.safe_load(lab.inventory.read_text())
    hosts = tree["all"]["children"]["gpu"]["hosts"]
    assert hosts["gpu02"]["ansible_host"] == lab.host("gpu02").address
    key = Path(tree["all"]["vars"]["ansible_ssh_private_key_file"])
    assert key.stat().st_mode & 0o077 == 0


def test_a_reboot_gives_a_new_boot_id_and_keeps_disk_and_journal(lab: Lab) -> None:
    host = lab.host("gpu01")
    host.run(["sh", "-c", "echo kept > /root/kept; sync"])
    before = host.boot_id()
    host.reboot()
    assert host.boot_id() != before
    assert out(lab, "sudo", "cat", "/root/kept") == "kept"
    assert len(host.run(["journalctl", "--list-boots", "--no-pager", "-q"]).stdout.splitlines()) >= 2


# ---- cards --------------------------------------------------------------------------------------------

PYNVML = """
import json, pynvml as n
n.nvmlInit()
h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([[n.nvmlDeviceGetName(x), n.nvmlDeviceGetMemoryInfo(x).total >> 20] for x in h]))
"""


def test_unmodified_pynvml_and_nvidia_smi_agree_in_a_host(lab: Lab) -> None:
    found = importlib.util.find_spec("pynvml")
    assert found
    assert found.origin
    lab.host("gpu02").write("/tmp/pynvml.py", Path(found.origin).read_text())
    done = lab.host("gpu02").ssh(["cd /tmp && python3 -"], stdin=PYNVML)
    cards = json.loads(done.stdout)
    assert cards == [["NVIDIA GeForce RTX 4090", 24564]] * 2
    query = "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits"
    lines = out(lab, query, host="gpu02").splitlines()
    assert lines == [f"{name}, {size}" for name, size in cards]


def test_kernel_bus_and_packages_show_the_same_cards(lab: Lab) -> None:
    assert "Open Kernel Module" in out(lab, "cat", "/proc/driver/nvidia/version")
    assert out(lab, "cat", "/sys/module/nvidia/version") == "580.159.04"
    assert out(lab, "/sbin/modinfo", "-F", "version", "nvidia") == "580.159.04"
    assert out(lab, "lspci", "-nn").count("10de:2684") == 2
    assert (
        out(lab, "dpkg-query", "-W", "-f", "'${Status}'", "nvidia-driver-580-open") == "install ok installed"
    )
    assert out(lab, "ls", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")


@pytest.mark.parametrize(
    ("sandbox", "works"),
    [
        (["PrivateDevices=no"], True),
        (["PrivateDevices=yes"], False),
        (["DevicePolicy=closed"], False),
        (["DevicePolicy=closed", "DeviceAllow=/dev/nvidiactl rw", "DeviceAllow=/dev/nvidia0 rw"], True),
    ],
)
def test_a_sandbox_that_hides_the_cards_is_felt(lab: Lab, sandbox: list[str], works: bool) -> None:
    options = [word for setting in sandbox for word in ("-p", setting)]
    argv = ["systemd-run", "--wait", "--pipe", "-q", *options, "nvidia-smi", "-i", "0", "-L"]
    assert (lab.host("gpu02").run(argv, check=False).returncode == 0) is works


def test_a_driver_upgrade_needs_a_reboot(make_lab: MakeLab) -> None:
    lab = make_lab(["box"])
    out(lab, "sudo apt-get -q update && sudo apt-get -qy install nvidia-driver-590-open", host="box")
    done = lab.host("box").ssh(["nvidia-smi; test -e /run/reboot-required && echo wants a reboot"])
    assert "Driver/library version mismatch" in done.stdout
    assert "wants a reboot" in done.stdout
    lab.host("box").reboot()
    assert "590.48.01" in out(lab, "nvidia-smi", host="box")


def test_the_kernel_log_tells_of_an_xid(healed: Lab) -> None:
    healed.fault("gpu01", "gpu:xid79")
    assert "Xid (PCI:0000:01:00): 79" in out(healed, "sudo", "journalctl", "-k", "-q", "--no-pager")
    assert "Xid (PCI:0000:01:00): 79" in out(healed, "sudo", "dmesg")
    assert "GPU is lost" in healed.host("gpu01").ssh(["nvidia-smi", "-L"]).stdout


SOFTWARE = {
    "nouveau": ("test -e /sys/module/nouveau && nvidia-smi", 127, "not found"),
    "not-loaded": ("nvidia-smi", 9, "couldn't communicate with the NVIDIA driver"),
    "mismatch": ("nvidia-smi", 18, "version mismatch"),
    "driver-570": ("nvidia-smi", 0, "570.172.08"),
}


@pytest.mark.parametrize("name", SOFTWARE)
def test_driver_faults_are_live_and_heal(healed: Lab, name: str) -> None:
    command, code, text = SOFTWARE[name]
    healed.fault("gpu01", f"gpu:{name}")
    done = healed.host("gpu01").ssh([command])
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    healed.heal("gpu01", f"gpu:{name}")
    assert "580.159.04" in out(healed, "nvidia-smi")


def test_an_nvswitch_box_needs_its_fabric_manager(make_lab: MakeLab) -> None:
    lab = make_lab(["hgx"], profile="h200x8")
    state = "nvidia-smi -q -x | grep -A1 '<fabric>' | grep -o 'Completed\\|In Progress'"
    assert set(out(lab, state, host="hgx").split("\n")) == {"Completed"}
    assert out(lab, "lspci", "-n", host="hgx").count("10de:22a3") == 4
    out(lab, "sudo", "systemctl", "stop", "nvidia-fabricmanager", host="hgx")
    assert set(out(lab, state, host="hgx").split("\n")) == {"In Progress"}
    lab.fault("hgx", "gpu:fabric-mismatch")
    assert "don't match" in out(lab, "sudo journalctl -u nvidia-fabricmanager -q --no-pager", host="hgx")


# ---- faults -------------------------------------------------------------------------------------------


def quick(lab: Lab, *argv: str) -> subprocess.CompletedProcess[str]:
    """Ssh with a short patience, on a connection of its own."""
    options = ["-o", "ConnectTimeout=2", "-o", "BatchMode=yes"]
    return subprocess.run(
        ["ssh", *options, *lab.ssh_args("gpu01"), *(argv or ["true"])],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


REFUSED = {
    "link-down": "timed out",
    "frozen": "timed out",
    "sshd-stopped": "Connection refused",
    "port-rejected": "Connection refused",
    "host-key-changed": "Host key verification failed",
    "power-off": "No route to host",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_host_that_can_not_be_reached(healed: Lab, kind: str) -> None:
    healed.fault("gpu01", kind)
    done = quick(healed)
    assert done.returncode == 255
    # An address without a host answers by silence until the neighbour table gives up.
    assert REFUSED[kind] in done.stderr or (kind == "power-off" and "timed out" in done.stderr)
    healed.heal("gpu01", kind)
    assert quick(healed).returncode == 0


def test_a_slow_link(healed: Lab) -> None:
    healed.fault("gpu01", "rate", "2")
    began = time.monotonic()
    quick(healed, "head -c 500000 /dev/zero")
    assert time.monotonic() - began > 1.5
    healed.heal("gpu01")
    began = time.monotonic()
    quick(healed, "head -c 500000 /dev/zero")
    assert time.monotonic() - began < 1.5


def test_a_session_is_cut(healed: Lab) -> None:
    with subprocess.Popen(
        ["ssh", *healed.ssh_args("gpu01"), "echo here; sleep 60"], stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout
        assert session.stdout.readline() == "here\n"
        healed.fault("gpu01", "sessions-killed")
        assert session.wait(10) == 255


def test_packets_are_lost(healed: Lab) -> None:
    healed.fault("gpu01", "loss", "50")
    assert "numgen random mod 100 < 50 drop" in healed.host("gpu01").run(["nft", "list", "ruleset"]).stdout
    healed.heal("gpu01", "loss")
    assert "numgen" not in healed.host("gpu01").run(["nft", "list", "ruleset"]).stdout


@pytest.mark.parametrize(
    ("kind", "value", "command", "text"),
    [
        ("sudo-password", "", "sudo -n true", "a password is required"),
        ("no-sudo", "", "sudo -n true", "password is required"),
        ("read-only", "/opt", "sudo touch /opt/x", "Read-only file system"),
        ("port-taken", "8000", "sleep 0.3; ss -ltn | grep -q :8000 && echo taken >&2; false", "taken"),
        ("memory", "300M", "sudo -n python3 -c 'bytearray(400 << 20)'", ""),
    ],
)
def test_a_host_that_refuses(healed: Lab, kind: str, value: str, command: str, text: str) -> None:
    healed.fault("gpu01", kind, value)
    done = quick(healed, command)
    assert done.returncode != 0
    assert text in done.stderr
    healed.heal("gpu01", kind)
    assert quick(healed, "sudo -n true").returncode == 0


def test_sudo_takes_the_password(healed: Lab) -> None:
    healed.fault("gpu01", "sudo-password")
    done = healed.host("gpu01").ssh(["sudo -S -p '' whoami"], stdin=SUDO_PASSWORD + "\n")
    assert done.stdout == "root\n"


def test_a_small_disk_fills_and_stays_across_a_power_cut(make_lab: MakeLab) -> None:
    lab = make_lab(["small"], profile="none", size=96 << 20)
    out(lab, "echo kept > kept; sync", host="small")
    lab.fault("small", "disk-full")
    done = lab.host("small").ssh(["head -c 3000000 /dev/zero > big"])
    assert "No space left on device" in done.stderr
    lab.heal("small", "disk-full")
    lab.fault("small", "power-off")
    assert lab.host("small").state() == "off"
    lab.heal("small")
    assert out(lab, "cat", "kept", host="small") == "kept"
    assert lab.host("small").ssh(["nvidia-smi"]).returncode == 127


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("nope", "", UsageError),
        ("gpu:nope", "", UsageError),
        ("rate", "fast", UsageError),
        ("port-taken", "99999", UsageError),
        ("read-only", "opt", UsageError),
        ("memory", "much", UsageError),
        ("disk-full", "", CheckRefused),
        ("glibc", "old; rm x", UsageError),
    ],
)
def test_a_fault_that_can_not_be_is_refused(lab: Lab, kind: str, value: str, error: type[EyasError]) -> None:
    with pytest.raises(error):
        lab.fault("gpu01", kind, value)
    assert lab.host("gpu01").state() == "up"


def task(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run `invoke lab WORDS`; it must end well."""
    Program(namespace=Collection.from_module(tasks)).run(["invoke", "lab", *words])
    return "".join(capsys.readouterr())


def test_the_command_line(healed: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab = ["--lab", healed.name]
    assert "xid79" in task(capsys, "fault")
    assert "port 9000" in task(capsys, "fault", "gpu01", "port-taken", "--value", "9000", *lab)
    assert "port-taken=9000" in task(capsys, "status", *lab)
    found = json.loads(task(capsys, "status", "--json", *lab))
    assert found["schema"] == 1
    assert found["labs"][0]["hosts"][0]["faults"] == {"port-taken": "9000"}
    assert "port-taken" in task(capsys, "heal", "gpu01", *lab)
    assert "root" in task(capsys, "run", "gpu01", "whoami", *lab)


# ---- coming and going ---------------------------------------------------------------------------------


def test_two_labs_live_side_by_side_and_down_leaves_nothing(lab: Lab, make_lab: MakeLab) -> None:
    other = make_lab(["gpu01"], profile="none", os="debian", user="root")
    assert other.network.base != lab.network.base
    assert out(other, "whoami") == "root"
    assert out(other, ". /etc/os-release; echo $ID") == "debian"
    out(lab, "true")
    other.down()
    assert other.name not in {*lab_names(), *foreign_labs()}
    assert not any(other.name in name for name in netns_names())
    assert not cgroups.hosts(other.name)
    assert other.name not in Path("/proc/self/mounts").read_text()
    assert not other.home.exists()
    out(lab, "true")
    other.down()  # again: nothing to do, no error


def test_a_lab_gets_more_cpu_than_one_process_and_is_removed_without_its_state(make_lab: MakeLab) -> None:
    lab = make_lab(["gpu01"], profile="none", size=32 << 20)
    groups = [m / cgroups.TOP / lab.name for m in cgroups.hierarchies().values()]
    told = {int(p.read_text()) for g in groups for p in (g / "cpu.shares", g / "cpu.weight") if p.exists()}
    assert told <= {1024 * cgroups.PROCESSES, 100 * cgroups.PROCESSES}
    assert told
    (lab.home / "lab.json").unlink()
    assert lab.name in foreign_labs()
    with pytest.raises(UsageError, match="state in another cache"):
        Lab.up(["gpu01"], name=lab.name, profile="none")
    Lab.find(lab.name).down()
    assert lab.name not in foreign_labs()
    assert lab.name not in Path("/proc/self/mounts").read_text()


def test_a_host_boots_where_only_cgroup_v2_is(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = cgroups.hierarchies()
    if "unified" not in seen:
        pytest.skip("this machine mounts no cgroup v2 hierarchy")
    monkeypatch.setattr(cgroups, "hierarchies", lambda: {"unified": seen["unified"]})
    lab = make_lab(["v2"], profile="none")
    assert out(lab, "stat", "-fc", "%T", "/sys/fs/cgroup", host="v2") == "cgroup2fs"
    assert out(lab, "systemctl", "is-system-running", "--wait", host="v2") == "running"
    lab.fault("v2", "frozen")
    assert lab.host("v2").state() == "silent"
    lab.heal("v2")
    out(lab, "true", host="v2")
    lab.down()
    assert lab.name not in cgroups.labs()


def test_up_is_idempotent_and_adds(make_lab: MakeLab) -> None:
    lab = make_lab(["a"], profile="none")
    pid = lab.host("a").pid
    again = Lab.up(["a", "b"], name=lab.name, profile="none")
    assert again.host("a").pid == pid
    assert out(again, "hostname", host="b") == "b"


@pytest.mark.parametrize("name", ["", "GPU", "a b", "-x", "a" * 40, "a.b", "../x"])
def test_a_bad_name_is_refused_before_anything_is_made(name: str) -> None:
    with pytest.raises(UsageError):
        Lab.up([name], name="pytest-bad")
    assert "pytest-bad" not in {*lab_names(), *foreign_labs()}
