"""Operating system, processor, memory, limits, cgroup, Python, tools."""

import ctypes
import os
import re
import resource
import struct
import sys
import time

from .base import Look, LookFailed, attempt, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOOLS = [
    "rsync",
    "systemctl",
    "curl",
    "git",
    "gcc",
    "g++",
    "cc",
    "ninja",
    "ip",
    "uv",
    "nvidia-smi",
    "nvcc",
    "modinfo",
    "dkms",
    "mokutil",
    "lspci",
    "ldconfig",
    "apt-get",
    "journalctl",
    "sha256sum",
    "tar",
    "sudo",
    "numactl",
    "ibstat",
    "python3-config",
]
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "hypervisor")
SYSCTLS = [
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.max_map_count",
    "fs.file-max",
    "fs.nr_open",
    "fs.inotify.max_user_instances",
    "kernel.pid_max",
    "kernel.numa_balancing",
    "net.core.somaxconn",
    "kernel.unprivileged_userns_clone",
]
CMDLINE = re.compile(
    r"(\w*iommu|pci|pcie\w*|nvidia|nouveau|module_blacklist|modprobe\.blacklist|huge|default_huge|cma|kho|mem|systemd\.unified|nomodeset)\b"
)
TIMEX_STATUS = 40
TIMEX_ESTERROR = 32
STA_UNSYNC = 0x40


def collect(look: Look) -> "dict[str, Any]":
    return {
        "os": _os(look),
        "cpu": attempt(_cpu, look),
        "memory": attempt(_memory, look),
        "limits": _limits(),
        "sysctl": {name: attempt(look.line, "/proc/sys/" + name.replace(".", "/")) for name in SYSCTLS},
        "cgroup": {"version": attempt(_cgroup_version, look), "memory_max": attempt(_memory_max, look)},
        "python": _python(look),
        "tools": {tool: attempt(look.which, tool) for tool in TOOLS},
    }


def _os(look: Look) -> "dict[str, Any]":
    release = attempt(_release, look)
    if "missing" in release:
        release = {"ID": release, "VERSION_ID": release, "PRETTY_NAME": release}
    uname = os.uname()
    return {
        "id": release.get("ID", ""),
        "version_id": release.get("VERSION_ID", ""),
        "codename": release.get("VERSION_CODENAME", ""),
        "pretty": release.get("PRETTY_NAME", ""),
        "kernel": uname.release,
        "kernels_installed": attempt(_kernels, look),
        "cmdline": attempt(_cmdline, look),
        "arch": uname.machine,
        "glibc": attempt(_glibc),
        "hostname": uname.nodename,
        "boot_id": attempt(look.line, "/proc/sys/kernel/random/boot_id"),
        "uptime_s": attempt(_uptime, look),
        "time": time.time(),
        "time_synced": attempt(_clock, TIMEX_STATUS),
        "time_error_us": attempt(_clock, TIMEX_ESTERROR),
        "container": attempt(_container, look),
    }


def _release(look: Look) -> "dict[str, str]":
    return fields(look.text("/etc/os-release"))


def _kernels(look: Look) -> "list[str]":
    return [n[len("vmlinuz-") :] for n in look.names("/boot") if n.startswith("vmlinuz-")]


def _cmdline(look: Look) -> "list[str]":
    """The boot parameters that bear on cards and memory; others may hold what is not ours to carry."""
    return [w for w in look.line("/proc/cmdline").split() if CMDLINE.match(w)]


def _glibc() -> str:
    answer = os.confstr("CS_GNU_LIBC_VERSION") or ""
    if not answer.startswith("glibc "):
        raise LookFailed("the C library is not glibc")
    return answer.split()[1]


def _uptime(look: Look) -> float:
    return float(look.line("/proc/uptime").split()[0])


def _clock(field: int) -> "Any":
    """Whether the kernel holds the clock for synchronised; with ESTERROR its estimated error (us)."""
    timex = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:
        raise LookFailed("adjtimex: " + os.strerror(ctypes.get_errno()))
    if field == TIMEX_STATUS:
        return not struct.unpack_from("i", timex, field)[0] & STA_UNSYNC
    return struct.unpack_from("l", timex, field)[0]


def _container(look: Look) -> "str | None":
    """What the host is wrapped in, by its own word; None on a machine of its own."""
    if look.exists("/run/systemd/container"):
        return look.line("/run/systemd/container")
    if look.exists("/.dockerenv"):
        return "docker"
    for entry in look.text("/proc/1/environ").split("\0") if os.geteuid() == 0 else ():
        if entry.startswith("container="):
            return entry[len("container=") :]
    return None


def _cpu(look: Look) -> "dict[str, Any]":
    info = look.text("/proc/cpuinfo")
    first = fields(info.split("\n\n")[0], ":")
    flags = set(first.get("flags", "").split())
    nodes = [n for n in look.names("/sys/devices/system/node") if n[:4] == "node" and n[4:].isdigit()]
    return {
        "count": len(os.sched_getaffinity(0)),
        "online": os.cpu_count(),
        "model": first.get("model name", ""),
        "flags": [f for f in CPU_FLAGS if f in flags],
        "numa_nodes": len(nodes),
    }


def _memory(look: Look) -> "dict[str, int]":
    info = fields(look.text("/proc/meminfo"), ":")
    wanted = {
        "total": "MemTotal",
        "available": "MemAvailable",
        "swap_total": "SwapTotal",
        "swap_free": "SwapFree",
    }
    return {name: int(info[key].split()[0]) * 1024 for name, key in wanted.items() if key in info}


def _limits() -> "dict[str, int | None]":
    """Limits of this login, in bytes or counts; None is unlimited. A unit's own are under eyas.units."""
    out = {}
    for name in ("nofile", "memlock", "nproc", "stack", "core"):
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        for kind, value in zip(("soft", "hard"), pair):
            out[name + "_" + kind] = None if value == resource.RLIM_INFINITY else value
    return out


def _cgroup_version(look: Look) -> int:
    return 2 if look.exists("/sys/fs/cgroup/cgroup.controllers") else 1


def _memory_max(look: Look) -> "int | None":
    """The tightest memory limit above this process; None is unlimited."""
    found = []
    for line in look.text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, name = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [p for p in path.split("/") if p]
        for depth in range(len(parts) + 1):
            file = "/".join([base, *parts[:depth], name])
            if look.exists(file):
                found.append(look.line(file))
    limits = [int(v) for v in found if v.isdigit() and int(v) < 1 << 60]
    return min(limits) if limits else None


def _python(look: Look) -> "dict[str, Any]":
    here = os.path.dirname(os.__file__)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {
        "path": sys.executable,
        "version": ".".join(str(n) for n in sys.version_info[:3]),
        "venv": os.path.isdir(here + "/ensurepip") and os.path.isdir(here + "/venv"),
        "headers": attempt(look.exists, f"/usr/include/python{version}/Python.h"),
        "others": attempt(_pythons, look),
    }


def _pythons(look: Look) -> "list[str]":
    """Further interpreters on the usual path, e.g. /usr/bin/python3.11."""
    names = (d + "/" + n for d in ("/usr/bin", "/usr/local/bin") for n in look.names(d))
    return [n for n in names if n.split("python3.")[-1].isdigit() and "/python3." in n]
