"""Control groups of lab hosts, on a machine with v1 hierarchies (also hybrid) and on one with pure v2.

A host gets one group, ``eyas-lab/LAB/HOST``, at the root of *every* hierarchy that is mounted, with
``keeper`` and ``payload`` in it: the host's systemd sees ``payload`` as the root of its own tree, where v2
suffers no process of anybody else. Leave one hierarchy out and the host's systemd would mount it itself and
write into the machine's root.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from inventory.errors import CheckRefused

__all__ = [
    "cpu_seconds",
    "create",
    "freeze",
    "hierarchies",
    "hosts",
    "is_v2",
    "labs",
    "limit_memory",
    "limit_writes",
    "processes",
    "remove",
]

ROOT = Path("/sys/fs/cgroup")
TOP = "eyas-lab"
CLONE_NEWCGROUP = 0x02000000
#: Of CPU time, when it is short, a group at the root gets as much as ONE process there: all labs together
#: would. A host, or a lab, counts as this many processes, but no lab as more than MOST: operators get on too.
PROCESSES, MOST = 2, 8


def hierarchies() -> dict[str, Path]:
    """Mount point by name: a v1 controller (``memory``), ``systemd``, or ``unified`` for v2."""
    found = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            found["unified"] = Path(where)
        elif kind == "cgroup":
            found[Path(where).name] = Path(where)
    return found


def is_v2(names: Iterable[str]) -> bool:
    return set(names) == {"unified"}


def _groups(lab: str, host: str = "") -> Iterator[tuple[str, Path]]:
    for name, mount in hierarchies().items():
        yield name, mount / TOP / lab / host if host else mount / TOP / lab


def create(lab: str, host: str) -> dict[str, str]:
    """Make the host's groups; returns the folder of each hierarchy, by the hierarchy's name."""
    made = {}
    for name, group in _groups(lab, host):
        levels = [group.parent.parent, group.parent, group, group / "keeper", group / "payload"]
        for level in levels:
            level.mkdir(parents=True, exist_ok=True)
            if name == "cpuset":
                _inherit_cpuset(level)
            if name == "unified":
                _delegate(level.parent)
        made[name] = str(group)
        _share(group.parent)
        _share(group.parent.parent)
    return made


def _share(group: Path) -> None:
    """CPU time by the number of groups in it: hosts of a lab, labs of the machine."""
    below = sum(1 for p in group.iterdir() if p.is_dir())
    parts = min(PROCESSES * below, MOST)
    for file, one in (("cpu.shares", 1024), ("cpu.weight", 100)):
        if (group / file).exists():
            (group / file).write_text(str(one * parts))


def enter(groups: dict[str, str], part: str) -> None:
    """Move the calling process into ``keeper`` or ``payload`` of the groups that ``create`` returned."""
    for group in groups.values():
        Path(group, part, "cgroup.procs").write_text("0")


def unshare_namespace() -> None:
    """The groups the process is in now become the roots of all it can see."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWCGROUP):
        raise OSError(ctypes.get_errno(), "unshare cgroup namespace")


def _inherit_cpuset(group: Path) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())
    (group / "cgroup.clone_children").write_text("1")


def _delegate(group: Path) -> None:
    """Give the group's children its controllers; one that can't be had must not cost the others."""
    for name in (group / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{name}")


def processes(lab: str, host: str = "") -> set[int]:
    """Ids (outer) of every process of the host, or of the whole lab."""
    groups = dict(_groups(lab, host))
    found = set()
    for folder, _, _ in os.walk(groups.get("systemd", groups["unified"])):
        with contextlib.suppress(OSError):  # the group may end while we look; rglob would not bear that
            found |= {int(pid) for pid in (Path(folder) / "cgroup.procs").read_text().split()}
    return found


def cpu_seconds(lab: str) -> float:
    """CPU that the lab's hosts, all of them, have used since it is up."""
    for name, group in _groups(lab):
        if "cpuacct" in name.split(","):
            return int((group / "cpuacct.usage").read_text()) / 1e9
    stat = (dict(_groups(lab))["unified"] / "cpu.stat").read_text().split()
    return int(stat[stat.index("usage_usec") + 1]) / 1e6


def labs() -> set[str]:
    """Every lab with groups on this machine."""
    return {p.parent.name for mount in hierarchies().values() for p in (mount / TOP).glob("*/cgroup.procs")}


def hosts(lab: str) -> set[str]:
    return {p.parent.name for _, group in _groups(lab) for p in group.glob("*/cgroup.procs")}


def freeze(lab: str, host: str, frozen: bool) -> None:
    """Stop every process of the host where it stands, or let them go on."""
    groups = dict(_groups(lab, host))
    if "freezer" in groups:
        (groups["freezer"] / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
    else:
        (groups["unified"] / "cgroup.freeze").write_text("1" if frozen else "0")


def limit_memory(lab: str, host: str, limit: int | None) -> None:
    """Hold the whole host to ``limit`` bytes; None lifts it."""
    groups = dict(_groups(lab, host))
    if "memory" in groups:
        _set(groups["memory"] / "memory.limit_in_bytes", limit, f"{limit or -1}")
    else:
        _set(groups["unified"] / "memory.max", limit, f"{limit or 'max'}")


def limit_writes(lab: str, host: str, folder: Path, limit: int | None) -> None:
    """Hold writes of the host to the disk that ``folder`` is on to ``limit`` bytes a second; None lifts it.

    On v1 only direct and synced writes are held.
    """
    groups = dict(_groups(lab, host))
    device = folder.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    if "blkio" in groups:
        _set(groups["blkio"] / "blkio.throttle.write_bps_device", limit, f"{name} {limit or 0}")
    else:
        _set(groups["unified"] / "io.max", limit, f"{name} wbps={limit or 'max'}")


def _set(path: Path, limit: int | None, text: str) -> None:
    """Where the machine lacks the controller, lifting a limit is done already and setting one is refused."""
    if path.exists():
        path.write_text(text)
    elif limit is not None:
        raise CheckRefused(
            f"this machine has no {path.name}: the controller isn't enabled", hint="leave it out"
        )


def remove(lab: str, host: str = "") -> None:
    """Remove the groups, deepest first; with the last lab goes the parent of all. Empty groups only."""
    for _, group in _groups(lab, host):
        for folder in sorted(_folders(group), key=lambda p: -len(p.parts)):
            _rmdir(folder)
        if not host:
            with contextlib.suppress(OSError):  # other labs are there
                group.parent.rmdir()


def _folders(group: Path) -> list[Path]:
    return [group, *(p for p in group.rglob("*") if p.is_dir())] if group.exists() else []


def _rmdir(folder: Path) -> None:
    for _ in range(50):  # a group stays busy for some ms after its last process died
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
