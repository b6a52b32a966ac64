"""One host of a lab: its disk and identity, its power, its cards."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inventory.errors import ChangeFailed, UsageError
from tests.lab import cgroups, faults, kernel_log, mounts
from tests.lab.access import make_key
from tests.lab.card import sim
from tests.lab.keeper import PYTHON, REPOSITORY
from tests.lab.profiles import Profile, parse
from tests.lab.rootfs import os_release

if TYPE_CHECKING:
    from tests.lab.hosts import Lab

__all__ = ["SUDO_PASSWORD", "HostSpec", "LabHost", "unmount_below", "write_json"]

SSH_WAIT_S = 60.0
# op's password, where sudo asks for one (ssh takes none); it opens lab hosts only.
SUDO_PASSWORD = "lab-sudo-pw"
SUDO_SHADOW = (
    "$6$eyaslab$Ka5SgzDgQ3Jri6eRPD4xoS0cufAmAMuhRe1Hz89g3NmVM2Oi3wkrG6HzL1XIZJsdcRZ3Gfv6E7Jk.fhq8aNuf."
)


@dataclass(frozen=True)
class HostSpec:
    """What a host is. ``size``: its disk in bytes (held in memory), None: as large as this machine's."""

    name: str
    number: int
    profile: str = "rtx4090x1"
    size: int | None = None
    memory: int | None = None
    os: str = "ubuntu"
    user: str = "op"
    sudo: str = "nopasswd"
    #: Only sshd, on a disk of its own: no systemd, no card. A hundred of them fit where twenty full ones do.
    light: bool = False

    def __post_init__(self) -> None:
        parse(self.profile)
        os_release(self.os)
        known = {"user": {"op", "root"}, "sudo": {"nopasswd", "password"}}
        for option, words in known.items():
            if getattr(self, option) not in words:
                raise UsageError(
                    f"no such --{option}: {getattr(self, option)}", hint=f"one of {sorted(words)}"
                )
        for option, least in {"size": 32, "memory": 64}.items():
            if (value := getattr(self, option)) is not None and value < least << 20:
                raise UsageError(f"--{option} is too small to boot", hint=f"--{option} {least}M or more")


class LabHost:
    """One host of a lab. ``home`` is its folder on this machine."""

    def __init__(self, lab: "Lab", spec: HostSpec) -> None:
        self.lab: Lab = lab
        self.spec: HostSpec = spec
        self.name: str = spec.name
        self.home: Path = lab.home / "hosts" / spec.name
        self.address: str = lab.network.address(spec.number)

    @property
    def pid(self) -> int | None:
        """The host's PID 1 as this machine numbers it; None while it is off."""
        try:
            pid = int((self.home / "init.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if pid in cgroups.processes(self.lab.name, self.name) else None

    def enter_argv(self, argv: Sequence[str]) -> list[str]:
        """What to exec on this machine to run ``argv`` as root inside, whatever sshd is doing."""
        if (pid := self.pid) is None:
            raise ChangeFailed(
                "the host is off", host=self.name, hint=f"invoke lab fault {self.name} power-on"
            )
        return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "--", *argv]

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 60, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run as root inside the host, not through SSH. ChangeFailed when ``check`` and the exit is not 0."""
        done = subprocess.run(
            self.enter_argv(argv),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "LANG": "C.UTF-8",
            },
        )
        if check and done.returncode:
            raise ChangeFailed(
                f"{' '.join(argv)} exited {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}",
                host=self.name,
            )
        return done

    def ssh(
        self, argv: Sequence[str], *, timeout: float = 60, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run through real ssh, as the host's user."""
        return subprocess.run(
            ["ssh", *self.lab.ssh_args(self.name), *argv],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file of the running host as root."""
        self.run(["sh", "-ec", f'cat > "$1"; chmod {mode:o} "$1"', "sh", path], stdin=text)

    # ---- the cards -----------------------------------------------------------------------------------

    def set_profile(self, name: str) -> None:
        """Other cards or another driver, at once: as if the host had been switched off for it.

        When only the cards change, what is loaded stays; when the profile's packages or module differ from
        those of the present one, they are installed and loaded.
        """
        before, after = parse(self.spec.profile), parse(name)
        driver = (after.packages, after.enable, after.module)
        same_driver = driver == (before.packages, before.enable, before.module)
        self.spec = replace(self.spec, profile=name)
        config = json.loads((self.home / "host.json").read_text())
        write_json(self.home / "host.json", {**config, "profile": name})
        self.lab.save()
        if (pid := self.pid) is None:
            raise ChangeFailed("the host is off: it will come up with the new cards", host=self.name)
        root = Path(f"/proc/{pid}/root")
        if not same_driver:
            self._change_driver(before, after)
        sim.render(self.home / "sim", after, sim.installed_module(root), keep_module=same_driver)
        sim.make_nodes(self.home / "sim", root / "dev", after)
        for unit in after.enable:
            self.run(["systemctl", "restart", unit], check=False)
        kernel_log.say(self.home, [line for line in after.kernel_log if line not in before.kernel_log])

    def _change_driver(self, before: Profile, after: Profile) -> None:
        script = ["export DEBIAN_FRONTEND=noninteractive"]
        script += [f"systemctl disable -q --now {unit} || true" for unit in before.enable]
        if after.packages != before.packages:
            gone = [f"{name}-" for name in before.packages if name not in after.packages]
            script += (
                ["apt-get -q update", f"apt-get -qy install {' '.join([*after.packages, *gone])}"]
                if after.packages
                else ["apt-get -qy purge 'nvidia-*' 'libnvidia-*'"]
            )
        script += [f"systemctl enable -q {unit}" for unit in after.enable]
        self.run(["sh", "-ec", "\n".join([*script, "rm -f /run/reboot-required*"])], timeout=120)

    # ---- making and unmaking -------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether it was made to the end and its disk is there (one in memory goes with the machine)."""
        return (self.home / "host.json").exists() and (self.home / "disk/upper").is_dir()

    def make(self, layers: list[Path]) -> None:
        """Its disk on top of ``layers`` (topmost first, the root file system last) and its identity."""
        self.remove()
        self._disk()
        self._personalise(self.home / "disk/upper", layers[-1])
        config = {
            "name": self.name,
            "netns": self.lab.network.host_netns(self.name),
            "profile": self.spec.profile,
            "layers": [str(p) for p in layers],
            "light": self.spec.light,
        }
        write_json(self.home / "host.json", config)

    def _disk(self) -> None:
        disk = self.home / "disk"
        disk.mkdir(parents=True)
        (self.home / "root").mkdir()
        if self.spec.size is not None:
            mounts.mount("eyas-lab", disk, "tmpfs", data=f"mode=755,size={self.spec.size}")
        for name in ("upper", "work"):
            (disk / name).mkdir(mode=0o755)

    def _personalise(self, upper: Path, base: Path) -> None:
        """What makes this clone this host: names, keys, users, how it presents itself."""
        free = "NOPASSWD: " if self.spec.sudo == "nopasswd" else ""
        authorized = make_key(self.lab.home / "id_ed25519", f"eyas lab {self.lab.name}") + "\n"
        make_key(upper / "etc/ssh/ssh_host_ed25519_key", self.name)
        files = {
            "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n{self.lab.network.gateway} operator\n",
            "root/.ssh/authorized_keys": authorized,
            "home/op/.ssh/authorized_keys": authorized,
            "etc/sudoers.d/eyas-lab": f"op ALL=(ALL:ALL) {free}ALL\n",
        }
        if text := os_release(self.spec.os):
            files |= {"etc/os-release": text, "usr/lib/os-release": text}
        for name, text in files.items():
            self._put(upper, base, name, text)
        old = (base / "etc/shadow").read_text()
        shadow = re.sub(r"(?m)^op:[^:]*:", lambda _: f"op:{SUDO_SHADOW}:", old)
        self._put(upper, base, "etc/shadow", shadow)
        shutil.copystat(base / "etc/shadow", upper / "etc/shadow")
        os.chown(upper / "etc/shadow", 0, (base / "etc/shadow").stat().st_gid)
        for folder in ("home/op", "home/op/.ssh", "home/op/.ssh/authorized_keys"):
            os.chown(upper / folder, 1000, 1000)
        (upper / "etc/sudoers.d/eyas-lab").chmod(0o440)

    @staticmethod
    def _put(upper: Path, base: Path, name: str, text: str) -> None:
        """Write a file into the clone; folders it needs get the base's mode and owner."""
        for folder in list(reversed(Path(name).parents))[1:]:
            if not (upper / folder).exists():
                (upper / folder).mkdir()
                if (base / folder).exists():
                    shutil.copystat(base / folder, upper / folder)
        (upper / name).write_text(text)

    def remove(self) -> None:
        """Power off and forget the host; fine when it is half there or not at all."""
        self.power_off()
        self.lab.network.remove_host(self.name)
        cgroups.remove(self.lab.name, self.name)
        unmount_below(self.home)
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- power ---------------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Start the keeper, and with it the host; returns at once. Nothing happens when it runs already."""
        if cgroups.processes(self.lab.name, self.name):
            return
        self.lab.network.add_host(self.name, self.spec.number)
        groups = cgroups.create(self.lab.name, self.name)
        write_json(self.home / "cgroups.json", groups)
        cgroups.limit_memory(self.lab.name, self.name, self.spec.memory)
        self.lab.network.set_link(self.spec.number, up="link-down" not in faults.active(self))
        # setsid's fork leaves the keeper to init: it outlives us and is nobody's zombie.
        keeper = ["setsid", "--fork", *PYTHON, "-m", "tests.lab.keeper", str(self.home)]
        with (self.home / "console.log").open("ab") as console:
            subprocess.run(
                keeper,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                check=True,
                env={"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"},
            )

    def power_off(self) -> None:
        """Pull the plug: every process of the host is killed, nothing is written, no packet is answered."""
        self.lab.network.set_link(self.spec.number, up=False)
        for _ in range(200):
            pids = cgroups.processes(self.lab.name, self.name)
            if not pids:
                return
            with suppress(OSError):
                cgroups.freeze(self.lab.name, self.name, frozen=False)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        raise ChangeFailed(f"processes {sorted(pids)} can't be killed", host=self.name)

    def reboot(self, *, wait: bool = True) -> None:
        """A clean reboot through systemd; with ``wait`` until sshd answers on the new boot."""
        if self.spec.light:
            raise UsageError("a light host has nothing that reboots", hint="power-off, then power-on")
        before = self.boot_id()
        self.run(["systemctl", "reboot"], check=False)
        if wait:
            self.wait_reboot(before)

    def boot_id(self) -> str:
        return self.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()

    def wait_reboot(self, before: str, timeout: float = SSH_WAIT_S) -> None:
        def again() -> bool:
            with suppress(ChangeFailed):
                return self.boot_id() != before
            return False

        _wait(again, timeout, f"{self.name} did not come back from its reboot")
        self.wait_ssh(timeout)

    def wait_ssh(self, timeout: float = SSH_WAIT_S) -> None:
        """Until sshd greets. ChangeFailed with the console's last lines when it doesn't."""
        _wait(self.greets, timeout, f"{self.name}: no SSH on {self.address}", self.console)

    def greets(self) -> bool:
        with suppress(OSError), socket.create_connection((self.address, 22), timeout=1) as s:
            s.settimeout(1)
            return s.recv(4) == b"SSH-"
        return False

    def console(self, lines: int = 5) -> str:
        with suppress(OSError):
            return "\n".join((self.home / "console.log").read_text(errors="replace").splitlines()[-lines:])
        return ""

    def state(self) -> str:
        """``up`` (sshd greets), ``silent`` (it runs, sshd doesn't answer) or ``off``."""
        if self.pid is None:
            return "off"
        return "up" if self.greets() else "silent"


def write_json(path: Path, value: Any) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1))
    partial.rename(path)


def _wait(done: Callable[[], bool], timeout: float, what: str, why: Callable[[], str] = str) -> None:
    end = time.monotonic() + timeout
    while not done():
        if time.monotonic() > end:
            raise ChangeFailed(f"{what} within {timeout:.0f} s\n{why()}".strip(), hint="invoke lab status")
        time.sleep(0.05)


def unmount_below(folder: Path) -> None:
    """Deepest first; a busy one is detached and goes with its last user."""
    below = [
        Path(line.split()[1].replace("\\040", " "))
        for line in Path("/proc/self/mounts").read_text().splitlines()
    ]
    for place in sorted((p for p in below if p.is_relative_to(folder)), key=lambda p: -len(p.parts)):
        mounts.umount(place)
