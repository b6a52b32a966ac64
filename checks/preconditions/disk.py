"""Room and rights where wheels, weights and releases go, and memory to load them through."""

from collections.abc import Iterator
from typing import Any

from checks.facts import HostFacts
from checks.outcome import Severity
from checks.preconditions.common import do, gib, seen
from checks.preconditions.want import Want
from checks.rule import Found, NotApplicable, NotLooked, known, need, rule

__all__ = ["RULES"]

#: Left free on every file system: logs and the journal go on being written.
RESERVE = 1 << 30
INODES = 50_000


def _disks(facts: HostFacts, want: Want) -> dict[Any, tuple[dict[str, Any], dict[str, int]]]:
    """File system -> (its facts, what will be written there, by what it is)."""
    out: dict[Any, tuple[dict[str, Any], dict[str, int]]] = {}
    known_disks = need(facts, "disks")
    for folder, parts in want.disk.items():
        disk = next((d for d in known_disks if d.get("path") == folder), None)
        if disk is None:
            raise NotLooked(f"disks: {folder} was not probed")
        if "missing" in disk:
            raise NotLooked(f"disks: {disk['missing']}")
        _, parcels = out.setdefault(disk.get("device", disk["mount"]), (disk, {}))
        for name, size in parts.items():
            parcels[name] = parcels.get(name, 0) + size
    if not out:
        raise NotApplicable("nothing is to be written")
    return out


@rule("disk-full")
def room(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The disk has no room for the wheels and weights."""
    for disk, parcels in _disks(facts, want).values():
        total = sum(parcels.values())
        short = total + RESERVE - disk["free"]
        told = ", ".join(f"{name} {gib(size)}" for name, size in parcels.items() if size)
        if total and short > 0:
            yield Found(
                f"{disk['mount']} has {gib(disk['free'])} free, {gib(total)} are needed ({told}) "
                f"and {gib(RESERVE)} stay free: {gib(short)} short",
                seen(f"disks {disk['path']}", f"{disk['free']} bytes free on {disk['mount']}"),
                do(
                    "free space, or mount a larger disk there",
                    f"sudo du -xh -d 3 {disk['mount']} | sort -h | tail",
                ),
            )
        elif total and isinstance(disk.get("inodes_free"), int) and disk["inodes_free"] < INODES:
            yield Found(
                f"{disk['mount']} has {disk['inodes_free']} inodes free, {INODES} are needed",
                seen(f"disks {disk['path']}", f"{disk['inodes_free']} inodes free"),
                do("remove many small files, or use another disk"),
            )


@rule("disk-read-only")
def writable(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A folder eyas writes to, or runs programs from, is on a file system that forbids it."""
    for disk, _ in _disks(facts, want).values():
        if disk["read_only"]:
            yield Found(
                f"{disk['mount']} is mounted read-only, {disk['path']} is to be written",
                seen(f"disks {disk['path']}", "read-only"),
                do(
                    "mount it writable, or find out why it isn't", f"sudo mount -o remount,rw {disk['mount']}"
                ),
            )
        elif "noexec" in disk.get("options", []) and disk["path"].startswith("/opt"):
            yield Found(
                f"{disk['mount']} is mounted noexec, the environments under {disk['path']} hold programs",
                seen(f"disks {disk['path']}", "noexec"),
                do("mount it without noexec", f"sudo mount -o remount,exec {disk['mount']}"),
            )


@rule("host-ram-oom", severity=Severity.WARNING)
def memory(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The host has less memory than the weights, so loading is slow or is killed."""
    if not want.weights_bytes:
        raise NotApplicable("the weights' size is not known")
    total = need(facts, "memory.total")
    limit = known(facts, "cgroup.memory_max")
    have = min(total, limit) if limit else total
    if want.device == "cpu" and have < want.weights_bytes * 1.2:
        yield Found(
            f"the host has {gib(have)} of memory, the weights alone are {gib(want.weights_bytes)}",
            seen("memory.total", total),
            do("take a smaller model, or a host with more memory"),
            Severity.ERROR,
        )
    elif have < want.weights_bytes:
        yield Found(
            f"the host has {gib(have)} of memory, the weights are {gib(want.weights_bytes)}: a slow load",
            seen("memory.total", total),
            do("add memory or swap; raise the unit's start timeout"),
        )


RULES = (room, writable, memory)
