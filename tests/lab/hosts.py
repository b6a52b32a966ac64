"""A lab: some real hosts (systemd, sshd, sudo) in namespaces of this machine, with a simulated card.

    lab = Lab.up(["gpu01", "gpu02"], profile="rtx4090x2")
    lab.host("gpu01").run(["systemctl", "is-system-running"])
    subprocess.run(["ssh", *lab.ssh_args("gpu01"), "true"])
    lab.down()

State is in ``$XDG_CACHE_HOME/eyas/lab/labs/NAME``; nothing else remembers a lab, so a lab outlives the
process that made it, and `down` works after a crash of anything.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inventory.errors import ChangeFailed, UsageError
from tests.lab import cgroups, mounts
from tests.lab.access import make_key, write_access
from tests.lab.card.build import layers
from tests.lab.keeper import REPOSITORY
from tests.lab.needs import cache_dir, ensure_packages, require_lab
from tests.lab.net import Network, free_index
from tests.lab.profiles import parse
from tests.lab.rootfs import ensure_rootfs, locked, os_release, pick_release

__all__ = ["HostSpec", "Lab", "LabHost", "lab_names", "say_to_stderr"]

NEEDED = ["iproute2", "util-linux", "openssh-client"]
SSH_WAIT_S = 60.0
SUDO_PASSWORD = "lab-sudo-pw"  # of hosts made with sudo="password"; reaches lab hosts only


def say_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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


class LabHost:
    """One host of a lab. ``home`` is its folder on this machine."""

    def __init__(self, lab: "Lab", spec: HostSpec) -> None:
        self.lab = lab
        self.spec = spec
        self.name = spec.name
        self.home = lab.home / "hosts" / spec.name
        self.address = lab.network.address(spec.number)

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

    # ---- making and unmaking -------------------------------------------------------------------------

    def create(self, layers: list[Path]) -> None:  # layers: topmost first, the root file system last
        """The host's disk, keys and groups; it is off afterwards. Half-made ones are made anew."""
        if not (self.home / "host.json").exists():
            self.remove()
            self._disk()
            self._personalise(self.home / "disk/upper", layers[-1])
        self.lab.network.add_host(self.name, self.spec.number)
        groups = cgroups.create(self.lab.name, self.name)
        cgroups.limit_memory(self.lab.name, self.name, self.spec.memory)
        config = {
            "name": self.name,
            "netns": self.lab.network.host_netns(self.name),
            "profile": self.spec.profile,
            "layers": [str(p) for p in layers],
            "cgroups": [str(p) for p in groups],
        }
        partial = self.home / "host.json.partial"
        partial.write_text(json.dumps(config))
        partial.rename(self.home / "host.json")

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
        _unmount_below(self.home)
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- power ---------------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Start the keeper, and with it the host; returns at once. Nothing happens when it runs already."""
        if cgroups.processes(self.lab.name, self.name):
            return
        with (self.home / "console.log").open("ab") as console:
            subprocess.Popen(
                [sys.executable, "-m", "tests.lab.keeper", str(self.home)],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"},
            )

    def power_off(self) -> None:
        """Pull the plug: every process of the host is killed, nothing is written any more."""
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


def _wait(done: Callable[[], bool], timeout: float, what: str, why: Callable[[], str] = str) -> None:
    end = time.monotonic() + timeout
    while not done():
        if time.monotonic() > end:
            raise ChangeFailed(f"{what} within {timeout:.0f} s\n{why()}".strip(), hint="invoke lab status")
        time.sleep(0.05)


def _unmount_below(folder: Path) -> None:
    """Deepest first; a busy one is detached and goes with its last user."""
    below = [
        Path(line.split()[1].replace("\\040", " "))
        for line in Path("/proc/self/mounts").read_text().splitlines()
    ]
    for place in sorted((p for p in below if p.is_relative_to(folder)), key=lambda p: -len(p.parts)):
        mounts.umount(place)


class Lab:
    """The hosts under one name. Several labs live side by side, each with its own subnet."""

    def __init__(self, name: str, index: int, release: str, hosts: dict[str, HostSpec]) -> None:
        self.name = name
        self.index = index
        self.release = release
        self.home = labs_dir() / name
        self.network = Network(name, index)
        self.hosts = {spec.name: LabHost(self, spec) for spec in hosts.values()}

    # ---- the API of tests ----------------------------------------------------------------------------

    @classmethod
    def up(
        cls,
        names: Iterable[str],
        *,
        name: str = "default",
        release: str = "auto",
        yes: bool = False,
        say: Callable[[str], None] = say_to_stderr,
        **spec: Any,
    ) -> "Lab":
        """Make sure these hosts run and sshd answers on each; ``spec`` goes to HostSpec for new ones.

        Hosts the lab already has stay as they are (and are switched on when they were off).
        """
        require_lab()
        ensure_packages(NEEDED, yes)
        _check_names([name, *(names := list(names))])
        _check_inotify(len(names), say)
        with locked(labs_dir() / f"{name}.lock"):
            lab = cls._load_or_new(name, release)
            base = ensure_rootfs(lab.release, yes=yes, say=say)
            parse(spec.get("profile", "none"))
            lab._add(names, spec)
            lab.network.up()
            for host in (lab.hosts[n] for n in names):
                host.create(layers(base, parse(host.spec.profile), yes=yes, say=say))
                host.power_on()
            lab._save()
            for n in names:
                lab.hosts[n].wait_ssh()
        return lab

    @classmethod
    def load(cls, name: str = "default") -> "Lab":
        """The lab of that name; UsageError when there is none."""
        path = labs_dir() / name / "lab.json"
        if not path.exists():
            raise UsageError(f"no lab {name!r}", hint="invoke lab up --hosts 2")
        known = json.loads(path.read_text())
        specs = {spec["name"]: HostSpec(**spec) for spec in known["hosts"]}
        return cls(name, known["index"], known["release"], specs)

    def host(self, name: str) -> LabHost:
        if name not in self.hosts:
            raise UsageError(
                f"lab {self.name!r} has no host {name!r}", hint=f"one of {', '.join(self.hosts)}"
            )
        return self.hosts[name]

    def ssh_args(self, name: str) -> list[str]:
        """Arguments of ssh and scp for that host, ending with its name."""
        return ["-F", str(self.home / "ssh_config"), self.host(name).name]

    @property
    def inventory(self) -> Path:
        return self.home / "hosts.yml"

    def down(self) -> None:
        """Stop and remove all of it: processes, namespaces, groups, mounts, disks. Safe to repeat."""
        with locked(labs_dir() / f"{self.name}.lock"):
            for host in self.hosts.values():
                host.remove()
            self.network.down()
            cgroups.remove(self.name)
            _unmount_below(self.home)
            shutil.rmtree(self.home, ignore_errors=True)

    # ---- bookkeeping ---------------------------------------------------------------------------------

    @classmethod
    def _load_or_new(cls, name: str, release: str) -> "Lab":
        """The number is taken under one lock for all labs, and kept by the file written inside it."""
        with locked(labs_dir() / ".numbers"), suppress(UsageError):
            return cls.load(name)
        with locked(labs_dir() / ".numbers"):
            taken = {cls.load(other).index for other in lab_names()}
            lab = cls(name, free_index(taken), pick_release(release), {})
            lab._save()
            return lab

    def _add(self, names: list[str], spec: dict[str, Any]) -> None:
        used = {h.spec.number for h in self.hosts.values()}
        free = (n for n in range(10_000) if n not in used)
        for name in names:
            if name not in self.hosts:
                self.hosts[name] = LabHost(self, HostSpec(name, next(free), **spec))
        self._save(access=False)

    def _save(self, *, access: bool = True) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        known = {
            "schema": 1,
            "index": self.index,
            "release": self.release,
            "hosts": [asdict(h.spec) for h in self.hosts.values()],
        }
        partial = self.home / "lab.json.partial"
        partial.write_text(json.dumps(known, indent=1))
        partial.rename(self.home / "lab.json")
        if access and self.hosts:
            write_access(self.home, self.hosts.values())


def labs_dir() -> Path:
    return cache_dir() / "labs"


def lab_names() -> list[str]:
    return sorted(p.parent.name for p in labs_dir().glob("*/lab.json"))


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?", name):
            raise UsageError(f"bad name {name!r}", hint="lower-case letters, digits and '-', 1 to 31 of them")


def _check_inotify(hosts: int, say: Callable[[str], None]) -> None:
    """A systemd host holds about six inotify instances of root's; 20 hosts are known to fit into 128."""
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    if hosts * 6.4 > limit:
        say(
            f"warning: fs.inotify.max_user_instances is {limit}, enough for about {limit * 10 // 64} hosts;"
            f" {hosts} need: sysctl fs.inotify.max_user_instances={max(1024, hosts * 10)}"
        )
