"""The firmware of one lab host: runs as the first process of new namespaces, mounts, becomes /sbin/init.

Run by the keeper as ``python -m tests.lab.boot HOST_DIR``.
"""

import json
import os
import socket
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.lab import cgroups, mounts
from tests.lab.card import sim
from tests.lab.mounts import NODEV, NOEXEC, NOSUID, RO
from tests.lab.profiles import parse

# Without these a host can't touch what isn't in a namespace: the clock, modules, the kernel log, devices.
DROPPED = (
    "sys_time",
    "sys_module",
    "sys_rawio",
    "syslog",
    "mknod",
    "wake_alarm",
    "mac_admin",
    "mac_override",
)
INIT = ("/sbin/init",)
SSHD = ("/usr/sbin/sshd", "-D", "-e", "-o", "UsePAM=no")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def boot(home: Path) -> None:
    host: dict[str, Any] = json.loads((home / "host.json").read_text())
    # Still the outer /proc: this is the id others know us by.
    (home / "init.pid").write_text(str(Path("/proc/self").readlink()))
    groups: dict[str, str] = json.loads((home / "cgroups.json").read_text())
    cgroups.enter(groups, "payload")
    cgroups.unshare_namespace()
    root = home / "root"
    mounts.private(Path("/"))
    _root(host, home, root)
    _proc(root)
    mounts.mount("sysfs", root / "sys", "sysfs", RO | NOSUID | NODEV | NOEXEC)
    _dev(root)
    if not host["light"]:
        (root / "dev/kmsg").touch()
        mounts.bind(home / "kmsg", root / "dev/kmsg")
    mounts.mount("tmpfs", root / "run", "tmpfs", NOSUID | NODEV, "mode=755,size=64m")
    if not host["light"]:
        _cgroups(root, groups)
        _card(home / "sim", root, host["profile"])
    _boot_id(root)
    _name(root, host["name"])
    _enter(root)
    _become(SSHD if host["light"] else INIT)


def _root(host: dict[str, Any], home: Path, root: Path) -> None:
    """Clone: the host's own writes go to ``disk/upper``, which outlives reboots and power cuts."""
    layers = ":".join(host["layers"])
    data = f"lowerdir={layers},upperdir={home}/disk/upper,workdir={home}/disk/work"
    mounts.mount("eyas-lab", root, "overlay", data=data)


def _proc(root: Path) -> None:
    proc = root / "proc"
    mounts.mount("proc", proc, "proc", NOSUID | NODEV | NOEXEC)
    # /proc/sys is the machine's, but for net: else systemd-sysctl writes the machine's settings.
    mounts.bind(proc / "sys", proc / "sys")
    mounts.bind(proc / "sys/net", proc / "sys/net")
    mounts.mount("none", proc / "sys", flags=mounts.BIND | mounts.REMOUNT | RO)
    if (proc / "sysrq-trigger").exists():
        mounts.bind("/dev/null", proc / "sysrq-trigger")


def _dev(root: Path) -> None:
    dev = root / "dev"
    mounts.mount("tmpfs", dev, "tmpfs", NOSUID, "mode=755,size=4m")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        (dev / name).touch()
        mounts.bind(f"/dev/{name}", dev / name)
    for name, target in {
        "ptmx": "pts/ptmx",
        "fd": "/proc/self/fd",
        "stdin": "/proc/self/fd/0",
        "stdout": "/proc/self/fd/1",
        "stderr": "/proc/self/fd/2",
    }.items():
        (dev / name).symlink_to(target)
    (dev / "pts").mkdir()
    mounts.mount("devpts", dev / "pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620,gid=5")
    (dev / "shm").mkdir()
    mounts.mount("tmpfs", dev / "shm", "tmpfs", NOSUID | NODEV, "mode=1777")


def _cgroups(root: Path, hierarchies: Iterable[str]) -> None:
    top = root / "sys/fs/cgroup"
    flags = NOSUID | NODEV | NOEXEC
    if cgroups.is_v2(hierarchies):
        mounts.mount("cgroup2", top, "cgroup2", flags)
        return
    mounts.mount("tmpfs", top, "tmpfs", flags, "mode=755")
    for name in hierarchies:
        (top / name).mkdir()
        if name == "unified":
            mounts.mount("cgroup2", top / name, "cgroup2", flags)
        else:
            option = "name=systemd,xattr" if name == "systemd" else name
            mounts.mount("cgroup", top / name, "cgroup", flags, option)


def _boot_id(root: Path) -> None:
    """The kernel's is the machine's; a host that came back must show a new one."""
    mine = root / "run/boot_id"
    mine.write_text(f"{uuid.uuid4()}\n")
    mine.chmod(0o444)
    mounts.bind(mine, root / "proc/sys/kernel/random/boot_id", read_only=True)


def _card(shown: Path, root: Path, profile: str) -> None:
    """Power-on: the installed module is loaded, and the host sees what that gives."""
    card = parse(profile)
    sim.render(shown, card, sim.installed_module(root))
    sim.bind_all(shown, root)
    sim.make_nodes(shown, root / "dev", card)


def _name(root: Path, name: str) -> None:
    socket.sethostname(name)
    (root / "etc/hostname").write_text(f"{name}\n")


def _enter(root: Path) -> None:
    os.chdir(root)
    Path(".outer").mkdir(exist_ok=True)
    mounts.pivot_root(Path(), Path(".outer"))
    os.chroot(".")
    mounts.umount(Path("/.outer"))
    Path("/.outer").rmdir()
    mounts.shared(Path("/"))


def _become(program: Iterable[str]) -> None:
    drop = ",".join(f"-{name}" for name in DROPPED)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    os.execve(
        "/usr/bin/setpriv",
        ["setpriv", "--bounding-set", drop, "--inh-caps", drop, *program],
        {"container": "eyas-lab", "PATH": PATH, "TERM": "dumb"},
    )


if __name__ == "__main__":
    boot(Path(sys.argv[1]).resolve())
