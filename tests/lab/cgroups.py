"""Control groups of lab hosts, on a machine with v1 hierarchies (also hybrid) and on one with pure v2.

A host gets one group, ``eyas-lab/LAB/HOST``, at the root of *every* hierarchy that is mounted: its systemd
sees that group as the root of its own tree. Leave one hierarchy out and the host's systemd would mount it
itself and write into the machine's root.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = [
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


def is_v2(found: dict[str, Path] | None = None) -> bool:
    return set(found or hierarchies()) == {"unified"}


def _groups(lab: str, host: str = "") -> Iterator[tuple[str, Path]]:
    for name, mount in hierarchies().items():
        yield name, mount / TOP / lab / host if host else mount / TOP / lab


def create(lab: str, host: str) -> list[Path]:
    """Make the host's groups; returns the folders a process must enter (through ``cgroup.procs``)."""
    made = []
    for name, group in _groups(lab, host):
        group.mkdir(parents=True, exist_ok=True)
        levels = [group.parent.parent, group.parent, group]
        if name == "cpuset":
            for level in levels:
                _inherit_cpuset(level)
        elif name == "unified" and is_v2():
            for level in [group.parent.parent.parent, *levels[:2]]:
                _delegate(level)
        made.append(group)
    return made


def _inherit_cpuset(group: Path) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())
    (group / "cgroup.clone_children").write_text("1")


def _delegate(group: Path) -> None:
    wanted = [f"+{name}" for name in (group / "cgroup.controllers").read_text().split()]
    for controller in wanted:
        with contextlib.suppress(OSError):  # one that can't be delegated must not cost the others
            (group / "cgroup.subtree_control").write_text(controller)


def processes(lab: str, host: str = "") -> set[int]:
    """Ids (outer) of every process of the host, or of the whole lab."""
    groups = dict(_groups(lab, host))
    found = set()
    for procs in groups.get("systemd", groups["unified"]).rglob("cgroup.procs"):
        with contextlib.suppress(OSError):  # the group may end while we look
            found |= {int(pid) for pid in procs.read_text().split()}
    return found


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
        (groups["memory"] / "memory.limit_in_bytes").write_text(str(limit or -1))
    else:
        (groups["unified"] / "memory.max").write_text(str(limit or "max"))


def limit_writes(lab: str, host: str, folder: Path, limit: int | None) -> None:
    """Hold writes of the host to the disk that ``folder`` is on to ``limit`` bytes a second; None lifts it.

    On v1 only direct and synced writes are held.
    """
    groups = dict(_groups(lab, host))
    device = folder.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    if "blkio" in groups:
        (groups["blkio"] / "blkio.throttle.write_bps_device").write_text(f"{name} {limit or 0}")
    else:
        (groups["unified"] / "io.max").write_text(f"{name} wbps={limit or 'max'}")


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
