"""What kernel and bus show of the cards: /proc/driver, /proc/devices, /sys/module, the PCI bus, /dev/nvidia*.

Folders and files of the host's ``sim`` folder are bound over the real places when the host boots; later
changes are written into them and are seen at once. The loaded module is what was *installed at boot*, so an
upgrade without a reboot leaves library and module apart, as on a real box.
"""

import contextlib
import json
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.lab import mounts
from tests.lab.profiles import Profile

__all__ = ["bind_all", "installed_module", "loaded_module", "make_nodes", "render"]

NVIDIA_MAJOR, UVM_MAJOR = 195, 511
NVIDIA, SWITCH_DEVICE = 0x10DE, 0x22A3
SECURE_BOOT = "efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SPEED = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0"}  # GT/s by PCIe generation

# What is bound where in the host; a place this kernel doesn't have stays as it is.
PLACES = {
    "etc": "etc/eyas-lab",
    "proc-driver": "proc/driver",
    "proc-devices": "proc/devices",
    "proc-modules": "proc/modules",
    "sys-module": "sys/module",
    "pci-devices": "sys/bus/pci/devices",
    "firmware": "sys/firmware",
}


def installed_module(root: Path) -> str | None:
    """``VERSION open`` or ``VERSION proprietary`` of the nvidia.ko below ``root``; None without one."""
    for path in sorted(root.glob("lib/modules/*/updates/dkms/nvidia.ko")):
        found = dict(re.findall(rb"\x00(version|license)=([^\x00]+)", path.read_bytes()))
        flavour = "open" if b"MIT" in found.get(b"license", b"") else "proprietary"
        return f"{found[b'version'].decode()} {flavour}"
    return None


def loaded_module(sim: Path) -> str:
    """``none``, ``nouveau`` or ``VERSION FLAVOUR``, as last rendered."""
    return (sim / "loaded").read_text()


def render(sim: Path, profile: Profile, installed: str | None, *, keep_module: bool = False) -> None:
    """Write everything the host is to see. ``keep_module``: what is loaded stays so, as without a reboot."""
    loaded = loaded_module(sim) if keep_module else _to_load(profile, installed)
    (sim / "etc").mkdir(parents=True, exist_ok=True)
    _replace(sim / "etc/gpu.profile", profile.text)
    _replace(sim / "loaded", loaded)
    (sim / "kernel.json").write_text(json.dumps([*_greeting(loaded), *profile.kernel_log]))
    version = loaded.split()[0] if loaded[0].isdigit() else ""
    _fill(sim / "proc-driver", dict(_proc_driver(profile, loaded)) if version else {})
    _fill(sim / "sys-module", dict(_sys_module(loaded, version)))
    _fill(sim / "pci-devices", dict(_pci_devices(profile, loaded, version)))
    _fill(sim / "firmware", {SECURE_BOOT: bytes([6, 0, 0, 0, profile.secure_boot])})
    _overwrite(sim / "proc-devices", _proc_devices(bool(version)))
    _overwrite(sim / "proc-modules", _proc_modules(loaded, bool(version)))


def _to_load(profile: Profile, installed: str | None) -> str:
    if profile.module is None:
        return installed or "none"
    flavour = installed.split()[1] if installed else "open"
    return f"{profile.module} {flavour}" if profile.module[0].isdigit() else profile.module


def _greeting(loaded: str) -> list[str]:
    if not loaded[0].isdigit():
        return ["nouveau 0000:01:00.0: NVIDIA AD102 (192000a1)"] if loaded == "nouveau" else []
    version, flavour = loaded.split()
    kind = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
    return [f"NVRM: loading NVIDIA UNIX {kind}  {version}  Release Build  (dvs-builder)"]


def _proc_driver(profile: Profile, loaded: str) -> Iterator[tuple[str, bytes]]:
    line = _greeting(loaded)[0].removeprefix("NVRM: loading ")
    yield "nvidia/version", f"NVRM version: {line}\nGCC version:  gcc version 13.3.0\n".encode()
    yield "nvidia/params", b"EnableGpuFirmware: 18\nNVreg_RegistryDwords: \n"
    for i, address in enumerate(profile.pci):
        text = (
            f"Model: \t\t {profile.keys[f'{i}.name']}\nGPU UUID: \t {profile.keys[f'{i}.uuid']}\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {i}\n"
        )
        yield f"nvidia/gpus/{address}/information", text.encode()


def _sys_module(loaded: str, version: str) -> Iterator[tuple[str, bytes]]:
    for path in Path("/sys/module").iterdir():
        yield f"{path.name}/uevent", b""
    if version:
        for name in ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"):
            yield f"{name}/refcnt", b"0\n"
        yield "nvidia/version", f"{version}\n".encode()
    if loaded == "nouveau":
        yield "nouveau/refcnt", b"1\n"


def _pci_devices(profile: Profile, loaded: str, version: str) -> Iterator[tuple[str, bytes | Path]]:
    driver = "nvidia" if version else loaded
    for i, address in enumerate(profile.pci):
        key = f"{i}."
        device, subsystem = int(profile.keys[key + "pci.device"]), int(profile.keys[key + "pci.subsystem"])
        kind = 0x030000 if "GeForce" in profile.keys[key + "name"] else 0x030200
        yield from _function(address, device >> 16, kind, subsystem, driver)
        for now in ("current", "max"):
            suffix = "_max" if now == "max" else ""
            speed = SPEED[int(profile.keys[f"{key}pcie.gen{suffix}"])]
            yield f"{address}/{now}_link_speed", f"{speed} GT/s PCIe\n".encode()
            yield f"{address}/{now}_link_width", f"{profile.keys[f'{key}pcie.width{suffix}']}\n".encode()
    for address in profile.switches:
        yield from _function(address, SWITCH_DEVICE, 0x068000, 0, "nvidia-nvswitch" if version else driver)


def _function(
    address: str, device: int, kind: int, subsystem: int, driver: str
) -> Iterator[tuple[str, bytes | Path]]:
    """One function of the bus as sysfs shows it, with a configuration header that lspci can read."""
    words = {
        "vendor": NVIDIA,
        "device": device,
        "subsystem_vendor": subsystem & 0xFFFF,
        "subsystem_device": subsystem >> 16,
    }
    for name, value in words.items():
        yield f"{address}/{name}", f"{value:#06x}\n".encode()
    yield f"{address}/class", f"{kind:#08x}\n".encode()
    yield f"{address}/revision", b"0xa1\n"
    yield f"{address}/numa_node", b"0\n"
    yield f"{address}/local_cpulist", b"0\n"
    yield f"{address}/irq", b"0\n"
    yield f"{address}/enable", b"1\n"
    yield f"{address}/resource", b"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13
    header = struct.pack("<HHHHI", NVIDIA, device, 0x0006, 0x0010, kind << 8 | 0xA1)
    yield f"{address}/config", header.ljust(44, b"\0") + struct.pack("<I", subsystem) + bytes(4096 - 48)
    if driver != "none":
        yield f"{address}/driver", Path(f"../../../../bus/pci/drivers/{driver}")


def _proc_devices(loaded: bool) -> str:
    text = Path("/proc/devices").read_text()
    mine = "".join(
        f"{m:3} {n}\n"
        for m, n in ((NVIDIA_MAJOR, "nvidia"), (NVIDIA_MAJOR, "nvidiactl"), (UVM_MAJOR, "nvidia-uvm"))
    )
    return text.replace("\n\nBlock", f"\n{mine}\nBlock") if loaded else text


def _proc_modules(loaded: str, nvidia: bool) -> str:
    with contextlib.suppress(OSError):
        lines = Path("/proc/modules").read_text()
        if nvidia:
            lines += "nvidia_uvm 2076672 0 - Live 0x0\nnvidia 14389248 1 nvidia_uvm, Live 0x0\n"
        return lines + ("nouveau 3096576 1 - Live 0x0\n" if loaded == "nouveau" else "")
    return ""


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.rename(path)


def _overwrite(path: Path, text: str) -> None:
    """In place: the file is bound in the host, another inode would not be seen."""
    with path.open("a+") as f:
        f.truncate(0)
        f.write(text)


def _fill(folder: Path, files: dict[str, bytes] | dict[str, bytes | Path]) -> None:
    """Make the folder hold exactly these files (a Path is a symlink), keeping its own inode."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        shutil.rmtree(old)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            (folder / name).symlink_to(content)
        else:
            (folder / name).write_bytes(content)


def bind_all(sim: Path, root: Path) -> None:
    """At boot, in the host's mount namespace."""
    for name, place in PLACES.items():
        if (root / place).exists():
            mounts.bind(sim / name, root / place)


def make_nodes(sim: Path, dev: Path, profile: Profile) -> None:
    """/dev/nvidia* as a loaded module makes them; no driver is behind them (ENXIO), but a cgroup or a sandbox
    that denies them is seen (EPERM, ENOENT).
    """
    wanted = dict(_nodes(profile)) if loaded_module(sim)[0].isdigit() else {}
    for old in dev.glob("nvidia*"):
        if old.name not in wanted:
            old.unlink()
    for name, number in wanted.items():
        if not (dev / name).exists():
            os.mknod(dev / name, stat.S_IFCHR | 0o666, number)
            (dev / name).chmod(0o666)


def _nodes(profile: Profile) -> Iterator[tuple[str, int]]:
    yield "nvidiactl", os.makedev(NVIDIA_MAJOR, 255)
    yield "nvidia-uvm", os.makedev(UVM_MAJOR, 0)
    yield "nvidia-uvm-tools", os.makedev(UVM_MAJOR, 1)
    for i, _ in enumerate(profile.pci):
        yield f"nvidia{i}", os.makedev(NVIDIA_MAJOR, i)
    for i, _ in enumerate(profile.switches):
        yield f"nvidia-nvswitch{i}", os.makedev(NVIDIA_MAJOR, 200 + i)
