"""The NVIDIA driver as packages, module, device nodes and kernel settings; what NVML says is in nvml.py."""

import os
import re
import stat

from .base import Look, LookFailed, attempt, fields, missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGES = re.compile(
    r"nvidia|libnvidia|cuda-drivers|cuda-compat|linux-modules-nvidia|libnccl|unattended-upgrades"
)
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
NVIDIA = "0x10de"
NVSWITCH_CLASS = "0x068000"


def collect(look: Look) -> "dict[str, Any]":
    devices = attempt(_pci, look)
    packages = attempt(_packages, look)
    module = attempt(_module_file, look) if devices else missing("no NVIDIA device on the PCI bus")
    return {"driver": dict(_loaded(look), devices=devices, module_file=module, **_installed(look, packages))}


def _loaded(look: Look) -> "dict[str, Any]":
    return {
        "module_version": attempt(_module_version, look),
        "module_open": attempt(_module_open, look),
        "nouveau": attempt(look.exists, "/sys/module/nouveau"),
        "nova": attempt(look.exists, "/sys/module/nova_core"),
        "peermem": attempt(look.exists, "/sys/module/nvidia_peermem"),
        "nodes": attempt(_nodes, look),
        "secure_boot": attempt(_secure_boot, look),
        "lockdown": attempt(_lockdown, look),
        "iommu_groups": attempt(lambda: len(look.names("/sys/kernel/iommu_groups"))),
        "acs": attempt(_acs, look),
    }


def _installed(look: Look, packages: "Any") -> "dict[str, Any]":
    out = {
        "reboot_required": attempt(_reboot_required, look),
        "unattended_upgrades": attempt(_unattended, look, packages),
    }
    if "missing" in packages:
        names = ("packages", "package", "package_version", "holds", "fabric_manager")
        return dict(out, **dict.fromkeys(names, packages))
    installed = {n: p for n, p in packages.items() if p["status"] == "installed"}
    main = next((n for n in sorted(installed) if _is_driver(n)), None)
    fabric = next((n for n in sorted(installed) if re.match(r"(nvidia-fabric|nvlsm)", n)), None)
    return dict(
        out,
        packages={n: p["version"] for n, p in sorted(installed.items()) if PACKAGES.search(n)},
        package=main,
        package_version=installed[main]["version"] if main else None,
        holds=sorted(n for n, p in packages.items() if p["hold"]),
        fabric_manager={
            "installed": fabric is not None,
            "package": fabric,
            "version": installed[fabric]["version"] if fabric else None,
        },
    )


def _is_driver(name: str) -> bool:
    return bool(
        re.match(r"(nvidia-driver-\d|nvidia-driver$|nvidia-open|nvidia-headless-\d|cuda-drivers)", name)
    )


def _packages(look: Look) -> "dict[str, dict[str, Any]]":
    """Dpkg's own status file, the packages of interest and every held one."""
    out = {}
    text = look.text("/var/lib/dpkg/status", 64 << 20)
    for block in text.split("\n\n"):
        match = re.match(r"Package: (\S+)\nStatus: (\S+) \S+ (\S+)", block)
        if not match or (match.group(2) != "hold" and not PACKAGES.search(match.group(1))):
            continue
        version = re.search(r"^Version: (\S+)", block, re.MULTILINE)
        out[match.group(1)] = {
            "hold": match.group(2) == "hold",
            "status": match.group(3),
            "version": version.group(1) if version else "",
        }
    return out


def _unattended(look: Look, packages: "Any") -> "dict[str, Any]":
    # Told the architectures, it need not ask dpkg for them: three quarters of its time.
    dump = look.run("apt-config", "-o", "APT::Architectures::=any", "dump")
    settings = re.findall(r'^([\w:-]+) "([^"]*)";', dump, re.MULTILINE)
    values = dict(settings)
    seen = packages.get("unattended-upgrades") if "missing" not in packages else None
    return {
        "installed": packages if "missing" in packages else bool(seen and seen["status"] == "installed"),
        "enabled": values.get("APT::Periodic::Unattended-Upgrade", "0") not in ("0", ""),
        "blacklist": [v for k, v in settings if k == "Unattended-Upgrade::Package-Blacklist::" and v],
    }


def _module_version(look: Look) -> "str | None":
    if look.exists("/sys/module/nvidia/version"):
        return look.line("/sys/module/nvidia/version")
    return "loaded" if look.exists("/sys/module/nvidia") else None


def _module_open(look: Look) -> "bool | None":
    if not look.exists("/proc/driver/nvidia/version"):
        return None
    return "Open Kernel Module" in look.text("/proc/driver/nvidia/version")


def _module_file(look: Look) -> "dict[str, Any] | None":
    """The module on disk for the running kernel: another version than the loaded one waits for a reboot."""
    code, out, err = look.finish("modinfo", "nvidia", limit=2.0)
    if code and "not found" in err:
        return None
    if code:
        raise LookFailed(f"modinfo exited {code}: {err.strip()[-200:]}")
    said = fields(out, ":")
    wanted = ("filename", "version", "license", "signer", "vermagic")
    return {name: said.get(name) for name in wanted}


def _nodes(look: Look) -> "list[dict[str, Any]]":
    out = []
    for name in look.names("/dev"):
        if name.startswith("nvidia"):
            seen = os.stat(look.path("/dev/" + name))
            out.append(
                {"path": "/dev/" + name, "mode": f"{stat.S_IMODE(seen.st_mode):o}", "uid": seen.st_uid}
            )
    return out


def _secure_boot(look: Look) -> bool:
    """Whether the firmware enforces signatures; a machine without EFI can't."""
    if not look.exists("/sys/firmware/efi"):
        return False
    with open(look.path(SECURE_BOOT), "rb") as f:
        data = f.read(16)
    return len(data) > 4 and data[4] == 1


def _lockdown(look: Look) -> str:
    return look.line("/sys/kernel/security/lockdown")


def _reboot_required(look: Look) -> "dict[str, Any]":
    listed = "/run/reboot-required.pkgs"
    return {
        "required": look.exists("/run/reboot-required"),
        "packages": sorted(set(look.text(listed).split())) if look.exists(listed) else [],
    }


def _pci(look: Look) -> "list[dict[str, Any]]":
    """NVIDIA's functions on the bus, seen with no driver at all: display controllers and NVSwitches."""
    out = []
    for address in look.names("/sys/bus/pci/devices"):
        folder = "/sys/bus/pci/devices/" + address
        if look.line(folder + "/vendor") != NVIDIA:
            continue
        kind = look.line(folder + "/class")
        if kind[:4] != "0x03" and kind != NVSWITCH_CLASS:
            continue
        out.append(
            {
                "pci": address,
                "device": look.line(folder + "/device"),
                "kind": "nvswitch" if kind == NVSWITCH_CLASS else "gpu",
                "driver": attempt(_bound, look, folder),
                "numa_node": attempt(lambda f=folder: int(look.line(f + "/numa_node"))),
                "link_speed": attempt(look.line, folder + "/current_link_speed"),
                "link_width": attempt(look.line, folder + "/current_link_width"),
            }
        )
    return out


def _bound(look: Look, folder: str) -> "str | None":
    if not look.exists(folder + "/driver"):
        return None
    return os.path.basename(os.readlink(look.path(folder + "/driver")))


def _acs(look: Look) -> "list[dict[str, Any]]":
    """PCI bridges whose Access Control Services redirect peer traffic: address and control register."""
    out = []
    for address in look.names("/sys/bus/pci/devices"):
        folder = "/sys/bus/pci/devices/" + address
        if not look.line(folder + "/class").startswith("0x0604"):
            continue
        with open(look.path(folder + "/config"), "rb") as f:
            control = _acs_control(f.read(4096))
        if control:
            out.append({"pci": address, "control": control})
    return out


def _acs_control(config: bytes) -> int:
    if len(config) < 4096:
        raise LookFailed("the extended configuration space is readable by root only")
    at, steps = 0x100, 0
    while at and steps < 64:
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == 0x000D:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at, steps = header >> 20 & 0xFFC, steps + 1
    return 0
