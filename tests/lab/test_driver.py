"""`provision --install-driver` on real hosts: apt, dpkg, holds, reboots are real, the card is not.

What comes after the driver (wheels, weights, unit) has its own tests: most runs end with the preconditions.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inventory.hosts import load_inventory
from inventory.load import load_deployment
from inventory.model import Deployment
from provision import converge, ssh
from provision.converge import HostReport, Options
from provision.journal import Journal
from provision.sources import Sources
from tests.lab.conftest import MakeLab
from tests.lab.host import LabHost

pytestmark = pytest.mark.lab

NEW = "580.159.04"
LISTING = (
    "find / -xdev ( -path /proc -o -path /sys -o -path /var/log ) -prune -o -type f -printf %p:%s:%T@\\n"
)
SHIPPED = Path(__file__).parents[2] / "inventory/locks/vllm-0.33.0-cu130-cp312.txt"


class Operator:
    """Someone who provisions a host. ``yes``: what they say to a reboot."""

    def __init__(self, host: LabHost, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.asked: list[str] = []

    def deployment(self, **changes: Any) -> Deployment:
        """Needs driver 580; its wheels are for the host's Python, so that only the driver is wrong."""
        model = self.folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
        lock = self.folder / "vllm-0.33.0-cu130-cp311.txt"
        python = "3.11" if "3.11" in self.host.run(["python3", "-V"]).stdout else "3.12"
        text = SHIPPED.read_text().replace('"python": "3.12"', f'"python": "{python}"')
        lock.write_text(text.replace("manylinux_2_39", "manylinux_2_36"))
        words = {"target": {"path": str(model)}, "lock": str(lock), "weights_from": "push", **changes}
        path = self.folder / "coder.yml"
        path.write_text(
            json.dumps({"engine": "vllm", "engine_version": "0.33.0", "max_model_len": 512, **words})
        )
        return load_deployment(str(path))

    def provision(
        self, *, install: bool = True, yes: bool = True, check: bool = False, **changes: Any
    ) -> HostReport:
        def confirm(_: str, question: str) -> bool:
            self.asked.append(question)
            return yes

        options = Options(
            check=check,
            sources=Sources(),
            journal=Journal(self.folder / "journal.jsonl"),
            install_driver=install,
            confirm=confirm,
        )
        (host,) = load_inventory(self.host.lab.inventory).select(self.host.name)
        connect = lambda h: ssh.connect(h, ssh.SshOptions())  # noqa: E731
        return converge.provision_host(host, self.deployment(**changes), connect, options, lambda _: None)

    # ---- what is on the host

    def sh(self, line: str) -> str:
        return self.host.run(["sh", "-c", line], timeout=120).stdout.strip()

    def packages(self) -> dict[str, str]:
        said = self.sh("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n' '*nvidia*' || true")
        words = (line.split() for line in said.splitlines())
        return {w[0]: w[1].split("-")[0] for w in words if w[-1] == "installed"}

    def holds(self) -> set[str]:
        return set(self.sh("apt-mark showhold").split())

    def module(self) -> str:
        found = re.search(r"  ([\d.]+)  ", self.sh("cat /proc/driver/nvidia/version 2>/dev/null || true"))
        return found.group(1) if found else ""

    def listing(self) -> str:
        return "\n".join(sorted(self.host.run(LISTING.split()).stdout.splitlines()))


@pytest.fixture
def only_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converge, "plan_changes", lambda *_: [])


@pytest.fixture
def operator(make_lab: MakeLab, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Operator]:
    """On a host of its own with the profile that the test names."""
    lab = make_lab(["gpu01"], **request.param)
    yield Operator(lab.host("gpu01"), tmp_path)
    lab.down()


def box(profile: str, **spec: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("operator", [{"profile": profile, **spec}], indirect=True, ids=[profile])


def titles(report: HostReport, *, done: bool | None = None) -> list[str]:
    return [c["title"] for c in report.changes if done is None or c["done"] is done]


HOLD = f"hold driver {NEW} and keep unattended upgrades off it"
OLD_TO_NEW = [
    f"install driver {NEW}: nvidia-driver-580-open",
    HOLD,
    f"reboot into driver {NEW}",
]


# ---- the way it goes ------------------------------------------------------------------------------------


@box("rtx4090x2+driver-535")
def test_an_old_driver_is_only_replaced_when_asked(operator: Operator) -> None:
    before = operator.listing()
    report = operator.provision(install=False)
    assert (report.exit_code, report.status) == (4, "refused")
    assert "driver 535.247.01 is older than 580" in report.error
    assert "--install-driver" in report.hint
    assert operator.listing() == before

    report = operator.provision(check=True)
    assert (report.exit_code, report.status, report.changed) == (0, "pending", 0)
    assert titles(report)[:3] == OLD_TO_NEW
    assert any("wheels" in title for title in titles(report)[3:]), "the rest is planned for the new driver"
    assert operator.listing() == before

    report = operator.provision(tensor_parallel=4)
    assert (report.exit_code, report.status, report.changed) == (4, "refused", 0), "refused before the driver"
    assert operator.listing() == before
    assert operator.asked == []


@box("rtx4090x2+driver-570")
@pytest.mark.usefixtures("only_driver")
def test_the_driver_waits_for_a_yes_and_the_next_run_goes_on(operator: Operator) -> None:
    boot = operator.host.boot_id()
    report = operator.provision(yes=False)
    assert (report.exit_code, report.status) == (5, "failed")
    assert report.error == f"driver {NEW} is installed, the reboot is pending"
    assert "--yes" in report.hint
    assert titles(report, done=True) == OLD_TO_NEW[:2]
    assert (operator.host.boot_id(), operator.module()) == (boot, "570.172.08")
    assert set(operator.packages().values()) == {NEW}
    assert operator.holds() == set(operator.packages())

    report = operator.provision()
    assert (report.exit_code, report.status, titles(report)) == (0, "changed", OLD_TO_NEW[2:])
    assert operator.host.boot_id() != boot
    assert operator.module() == NEW

    report = operator.provision()
    assert (report.exit_code, report.status, titles(report)) == (0, "ok", [])
    assert operator.asked == [OLD_TO_NEW[2]] * 2
    assert "/^nvidia-driver-580-open$/" not in operator.sh("apt-config dump")
    assert '"nvidia-driver-580-open$"' in operator.sh("apt-config dump Unattended-Upgrade::Package-Blacklist")


@box("rtx4090x2+no-driver")
def test_a_host_without_a_driver_is_ready_for_the_rest(operator: Operator) -> None:
    assert operator.provision(install=False).exit_code == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converge, "plan_changes", lambda *_: [])
        report = operator.provision()
    assert (report.exit_code, titles(report, done=True)) == (0, OLD_TO_NEW)
    assert operator.module() == NEW
    report = operator.provision(install=False, check=True)
    assert (report.exit_code, report.status) == (0, "pending")
    assert not [t for t in titles(report) if "driver" in t]


@box("h200x8+driver-535")
@pytest.mark.usefixtures("only_driver")
def test_an_nvswitch_box_gets_the_fabric_manager_of_the_same_version(operator: Operator) -> None:
    report = operator.provision(tensor_parallel=8)
    assert report.exit_code == 0, report.error
    packages = operator.packages()
    assert packages["nvidia-driver-580-server-open"] == packages["nvidia-fabricmanager-580"] == NEW
    assert set(packages.values()) == {NEW}
    assert "nvidia-fabricmanager-580" in operator.holds()
    assert operator.sh("systemctl is-active nvidia-fabricmanager") == "active"
    assert operator.sh("systemctl is-enabled nvidia-fabricmanager") == "enabled"
    assert titles(operator.provision(tensor_parallel=8)) == []


@box("h200x8+no-fabric-manager")
@pytest.mark.usefixtures("only_driver")
def test_a_missing_fabric_manager_needs_no_reboot(operator: Operator) -> None:
    """Apt asks no question before it installs a single package: a mere plan must not be an install."""
    boot, before = operator.host.boot_id(), operator.listing()
    report = operator.provision(tensor_parallel=8, check=True)
    assert (report.exit_code, report.status) == (0, "pending")
    assert operator.listing() == before
    report = operator.provision(tensor_parallel=8)
    assert report.exit_code == 0, report.error
    assert titles(report)[0] == f"install driver {NEW}: nvidia-fabricmanager-580"
    assert operator.sh("systemctl is-active nvidia-fabricmanager") == "active"
    assert operator.host.boot_id() == boot


# ---- interruptions ---------------------------------------------------------------------------------------


@box("rtx4090x2+driver-535")
@pytest.mark.usefixtures("only_driver")
def test_apt_killed_half_way_is_repaired_and_finished(operator: Operator) -> None:
    kill = "#!/bin/sh\nkill -9 $(ps -eo pid=,comm= | awk '$2 ~ /^(apt-get|dpkg)$/ {print $1}')\nexit 1\n"
    operator.sh("mv /usr/sbin/depmod /usr/sbin/depmod.real 2>/dev/null || mv /sbin/depmod /sbin/depmod.real")
    operator.host.write("/usr/sbin/depmod", kill, mode=0o755)
    report = operator.provision()
    assert (report.exit_code, report.status) == (5, "failed")
    assert "install" in report.error
    assert report.hint
    assert operator.sh("dpkg --audit; ls /var/lib/dpkg/updates")
    operator.sh("mv -f /usr/sbin/depmod.real /usr/sbin/depmod")

    report = operator.provision()
    assert report.exit_code == 0, report.error
    assert titles(report)[0] == "finish the package installation that was interrupted"
    assert set(operator.packages().values()) == {NEW}
    assert operator.module() == NEW
    assert titles(operator.provision()) == []


@box("rtx4090x2+no-driver")
@pytest.mark.usefixtures("only_driver")
def test_a_lost_connection_does_not_hurt_apt(operator: Operator) -> None:
    """The install goes on alone; the next run finds it done."""
    slow = "#!/bin/bash\ntouch /run/slow\nsleep 2\nexec -a depmod /usr/sbin/depmod.real\n"
    operator.sh("mv /usr/sbin/depmod /usr/sbin/depmod.real 2>/dev/null || mv /sbin/depmod /sbin/depmod.real")
    operator.host.write("/usr/sbin/depmod", slow, mode=0o755)

    def cut() -> None:
        for _ in range(300):
            if operator.host.run(["test", "-e", "/run/slow"], check=False).returncode == 0:
                operator.host.lab.fault("gpu01", "sessions-killed")
                return
            time.sleep(0.05)

    cutter = threading.Thread(target=cut)
    cutter.start()
    report = operator.provision()
    cutter.join()
    assert (report.exit_code, report.status) == (3, "unreachable")
    operator.sh("while pgrep -x apt-get > /dev/null; do sleep 0.1; done")
    assert set(operator.packages().values()) == {NEW}
    report = operator.provision()
    assert (report.exit_code, titles(report)) == (0, OLD_TO_NEW[1:])
    assert operator.module() == NEW


@box("rtx4090x2+no-driver")
@pytest.mark.usefixtures("only_driver")
def test_another_package_manager_is_waited_for(operator: Operator) -> None:
    hold = (
        "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w');"
        "fcntl.lockf(f, fcntl.LOCK_EX); open('/run/held', 'w'); time.sleep(3)"
    )
    operator.host.run(["systemd-run", "-q", "--collect", "python3", "-c", hold])
    operator.sh("while [ ! -e /run/held ]; do sleep 0.1; done")
    report = operator.provision()
    assert (report.exit_code, titles(report, done=True)) == (0, OLD_TO_NEW)


# ---- refusals: nothing is touched ------------------------------------------------------------------------

REFUSALS = {
    "held by somebody": (
        "rtx4090x2+driver-535",
        "apt-mark hold nvidia-driver-535-open",
        "nvidia-driver-535-open is held",
        "apt-mark unhold nvidia-driver-535-open",
    ),
    "Secure Boot": ("rtx4090x2+secure-boot", "true", "Secure Boot is on", "mokutil"),
    "a runfile driver": (
        "rtx4090x2+no-driver",
        "dpkg-deb -x $(ls /opt/eyas-lab/apt/libnvidia-compute-535_*.deb) / && ldconfig",
        "no package owns it",
        "nvidia-uninstall",
    ),
    "no such package": (
        "rtx4090x2+no-driver",
        "rm /etc/apt/sources.list.d/eyas-lab.list; rm -rf /var/lib/apt/lists; apt-get -q update",
        "apt has no package nvidia-driver-580-open",
        "add-apt-repository -y restricted",
    ),
    "a source that is gone": (
        "rtx4090x2+no-driver",
        "sed -i s:/opt/:/gone/: /etc/apt/sources.list.d/eyas-lab.list; rm -rf /var/lib/apt/lists",
        "apt has no package nvidia-driver-580-open",
        "package source",
    ),
    "not Ubuntu 24.04": (
        "rtx4090x2+no-driver",
        "sed -i 's/24.04/22.04/' /etc/os-release",
        "driver packages for Ubuntu 24.04",
        "by hand",
    ),
}


@pytest.mark.parametrize(
    ("operator", "name"),
    [({"profile": case[0]}, name) for name, case in REFUSALS.items()],
    indirect=["operator"],
    ids=list(REFUSALS),
)
def test_refuses_with_the_way_out(operator: Operator, name: str) -> None:
    _, prepare, says, way = REFUSALS[name]
    operator.sh(prepare)
    packages, boot = operator.packages(), operator.host.boot_id()
    report = operator.provision()
    assert (report.exit_code, report.status, report.changed) == (4, "refused", 0)
    assert says in report.error
    assert way in report.hint
    assert (operator.packages(), operator.host.boot_id()) == (packages, boot)


@box("rtx4090x2+driver-535", size=400 << 20)
def test_a_full_disk_is_told_before_apt_starts(operator: Operator) -> None:
    operator.host.lab.fault("gpu01", "disk-full")
    report = operator.provision()
    assert (report.exit_code, report.status) == (4, "refused")
    assert "MiB are free" in report.error
    assert "make room" in report.hint


@box("rtx4090x2+nouveau")
@pytest.mark.usefixtures("only_driver")
def test_a_module_that_keeps_the_card_is_a_failure_after_the_reboot(operator: Operator) -> None:
    """The lab's nouveau ignores every blacklist."""
    report = operator.provision()
    assert (report.exit_code, report.status) == (5, "failed")
    assert titles(report, done=True) == ["keep nouveau from loading", *OLD_TO_NEW]
    assert "driver-conflicting-module" in report.error
    assert "blacklist nouveau" in operator.sh("cat /etc/modprobe.d/eyas-nouveau.conf")
    assert "nouveau" in report.hint
