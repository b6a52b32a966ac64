"""Why the driver does not answer, or not well enough. One cause at a time: each state has one name."""

import re
from collections.abc import Iterator
from typing import Any

from checks.facts import HostFacts, Missing
from checks.outcome import Severity
from checks.preconditions.common import do, seen
from checks.preconditions.want import Want
from checks.rule import Found, NotApplicable, NotLooked, known, need, rule

__all__ = ["INSTALL", "RULES", "state"]

MISMATCH = 18
REJECTED = re.compile(r"Key was rejected|unsigned module|Lockdown: .*module", re.IGNORECASE)
NEEDS_OPEN = re.compile(r"requires use of the NVIDIA open kernel modules", re.IGNORECASE)
INSTALL = "invoke provision --host {host} --install-driver"


def state(facts: HostFacts) -> str:
    """Name the first reason why NVML gives no answer; "" when it does. NotLooked when unclear."""
    if known(facts, "driver.source"):
        return ""
    if isinstance(facts.get("driver.nvml_error"), Missing):
        return _silent(facts)
    if _versions_differ(facts):
        return "driver-nvml-mismatch"
    if need(facts, "driver.module_version"):
        return "driver-not-answering"
    if need(facts, "driver.nouveau") or need(facts, "driver.nova"):
        return "driver-conflicting-module"
    if known(facts, "driver.devices") == []:
        return "gpu-not-visible"
    if not _has_driver(facts):
        return "driver-missing"
    return _why_not_loaded(facts)


def _silent(facts: HostFacts) -> str:
    """The cards' part of the probe came to nothing: a hang is a cause, anything else is not known."""
    said = _nvml_said(facts)
    if said.startswith("no answer"):
        return "driver-not-answering"
    raise NotLooked(f"driver.nvml_error: {said}")


def _versions_differ(facts: HostFacts) -> bool:
    if known(facts, "driver.nvml_error_code") == MISMATCH:
        return True
    module, library = known(facts, "driver.module_version"), known(facts, "driver.library_version")
    return bool(module and library and module != library and re.match(r"\d", module))


def _has_driver(facts: HostFacts) -> bool:
    """Whether any part of a driver is there: package, module file, or the user-space library."""
    return bool(
        known(facts, "driver.package")
        or known(facts, "driver.module_file")
        or known(facts, "driver.nvml_error_code") not in {12, None}
    )


def _why_not_loaded(facts: HostFacts) -> str:
    if need(facts, "driver.secure_boot") and (_kernel_said(facts, REJECTED) or _unsigned(facts)):
        return "driver-secure-boot"
    if known(facts, "driver.module_file", "?") is None:
        return "driver-module-not-built"
    return "driver-not-loaded"


def _unsigned(facts: HostFacts) -> bool:
    file = known(facts, "driver.module_file")
    return isinstance(file, dict) and not file.get("signer")


def _kernel_said(facts: HostFacts, pattern: re.Pattern[str]) -> str:
    lines = known(facts, "driver.kernel_lines", [])
    return next((line["text"] for line in lines if pattern.search(line["text"])), "")


def _state_is(facts: HostFacts, want: Want, slug: str) -> bool:
    if want.driver_will_be_installed:
        raise NotApplicable("--install-driver puts a driver in place")
    return state(facts) == slug


def _nvml_said(facts: HostFacts) -> str:
    fact = facts.get("driver.nvml_error")
    return fact.reason if isinstance(fact, Missing) else str(fact.value or "NVML gives no answer")


@rule("gpu-not-visible", needs_cards=True)
def no_card(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A card is not there, or the driver does not show it."""
    answering = bool(known(facts, "driver.source"))
    shown = len(need(facts, "gpus")) if answering else 0
    on_bus = [d["pci"] for d in known(facts, "driver.devices", []) if _for_us(d)]
    if answering and shown < len(on_bus):
        yield _hidden(facts, want, shown, on_bus)
    elif state(facts) == "gpu-not-visible" or (answering and not shown):
        yield Found(
            f"no NVIDIA card on the PCI bus, the deployment wants {want.cards_here}",
            seen("driver.devices", "none"),
            do(
                "check that the card is seated, powered, and passed through to this machine", "lspci -d 10de:"
            ),
        )


def _for_us(device: dict[str, Any]) -> bool:
    """A card handed to a virtual machine (vfio) is not this host's any more."""
    return device.get("kind") == "gpu" and device.get("driver") != "vfio-pci"


def _hidden(facts: HostFacts, want: Want, shown: int, on_bus: list[str]) -> Found:
    line = _kernel_said(facts, NEEDS_OPEN)
    if line:
        return _open_needed(facts, line)
    return Found(
        f"{len(on_bus)} NVIDIA card(s) on the PCI bus, the driver shows {shown}",
        seen("driver.devices", ", ".join(on_bus)),
        do("read why the driver left one out", "sudo dmesg | grep -iE 'nvrm|nvidia' | tail -20"),
        Severity.ERROR if shown < want.cards_here else Severity.WARNING,
    )


def _open_needed(facts: HostFacts, line: str) -> Found:
    return Found(
        "this card needs the open kernel module, the closed one is installed",
        seen("driver.kernel_lines", line),
        do("install the open flavour of the driver", INSTALL.format(host=facts.host)),
        slug="driver-open-module-needed",
    )


@rule("driver-missing", needs_cards=True)
def missing(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A card is there, but no NVIDIA driver."""
    if _state_is(facts, want, "driver-missing"):
        floor = want.floors.driver if want.floors else ""
        needs = f", {want.floors.label} needs {floor} or newer" if floor and want.floors else ""
        yield Found(
            "no NVIDIA driver is installed" + needs,
            seen("driver.nvml_error", _nvml_said(facts)),
            do("install the driver", INSTALL.format(host=facts.host), value=floor),
        )


@rule("driver-conflicting-module", needs_cards=True)
def conflicting(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The open-source nouveau or nova module holds the card."""
    if state(facts) == "driver-conflicting-module":
        name = "nouveau" if need(facts, "driver.nouveau") else "nova_core"
        file = f"/etc/modprobe.d/eyas-{name}.conf"
        command = f"echo 'blacklist {name}' | sudo tee {file} && sudo update-initramfs -u && sudo reboot"
        yield Found(
            f"the kernel module {name} is loaded, NVIDIA's is not",
            seen("driver.kernel_modules", f"{name} is loaded"),
            do(f"keep {name} from loading, then reboot", command),
        )


@rule("driver-secure-boot", needs_cards=True)
def secure_boot(facts: HostFacts, want: Want) -> Iterator[Found]:
    """Secure Boot refuses the unsigned NVIDIA module."""
    if state(facts) == "driver-secure-boot":
        line = _kernel_said(facts, REJECTED) or "the module on disk has no signer"
        yield Found(
            "Secure Boot is on and the NVIDIA module is not signed by an enrolled key",
            (*seen("driver.secure_boot", "on"), *seen("driver.kernel_lines", line)),
            do(
                "use Ubuntu's signed modules, or enrol the key, or turn Secure Boot off in the firmware",
                "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der && sudo reboot",
            ),
        )


@rule("driver-module-not-built", needs_cards=True)
def not_built(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The driver's packages are there, but no module for the running kernel."""
    if _state_is(facts, want, "driver-module-not-built"):
        kernel = need(facts, "os.kernel")
        yield Found(
            f"package {known(facts, 'driver.package')} is installed, kernel {kernel} has no NVIDIA module",
            seen("driver.module_file", "absent"),
            do(
                "build or install the module for this kernel",
                f"sudo apt-get install -y linux-headers-{kernel}; sudo dkms autoinstall",
                value=kernel,
            ),
        )


@rule("driver-not-loaded", needs_cards=True)
def not_loaded(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The NVIDIA module is on disk but not loaded."""
    if state(facts) == "driver-not-loaded":
        yield Found(
            f"the NVIDIA module is installed but not loaded ({_nvml_said(facts)})",
            seen("driver.module_version", "none"),
            do("load it and read why it failed", "sudo modprobe nvidia; sudo dmesg | grep -i nvrm | tail"),
        )


@rule("driver-nvml-mismatch", needs_cards=True)
def mismatch(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The loaded module and the user-space library are of different driver versions."""
    if state(facts) != "driver-nvml-mismatch":
        return
    module = known(facts, "driver.module_version") or "another version"
    library = known(facts, "driver.library_version") or known(facts, "driver.package_version") or "another"
    yield Found(
        f"the loaded module is {module}, the library is {library}: an upgrade replaced one of them",
        (*seen("driver.nvml_error", _nvml_said(facts)), *seen("driver.module_version", module)),
        do("reboot, so that both are of one version, and hold the packages", "sudo reboot"),
    )


@rule("driver-not-answering", needs_cards=True)
def not_answering(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The driver is loaded but gives no answer."""
    if state(facts) != "driver-not-answering":
        return
    line = _kernel_said(facts, NEEDS_OPEN)
    if line:
        yield _open_needed(facts, line)
        return
    yield Found(
        f"driver {known(facts, 'driver.module_version') or '(version not shown)'} is loaded, "
        f"NVML says: {_nvml_said(facts)}",
        seen("driver.nvml_error", _nvml_said(facts)),
        do("read the driver's own words, then reboot", "sudo dmesg | grep -iE 'nvrm|nvidia' | tail -20"),
    )


RULES = (no_card, missing, conflicting, secure_boot, not_built, not_loaded, mismatch, not_answering)
