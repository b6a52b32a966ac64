"""The driver a host is to have: which package brings what its cards need, and what it lacks of that now.

A pure look at facts and the catalogue; the cards are known by their PCI ids, so no driver needs to run.
"""

import re
from dataclasses import dataclass
from typing import TypedDict

from packaging.version import Version

from checks.facts import HostFacts, Known, Missing
from checks.preconditions import driver as rules
from checks.rule import NotLooked
from inventory.errors import CheckRefused
from inventory.hardware import Branch, Chip, Drivers
from provision.apt import upstream

__all__ = ["Goal", "choose", "fabric_lacks", "foreign", "older", "refused"]


#: Packages that hold a part of a driver, by Ubuntu's names and those of NVIDIA's repository.
_PARTS = re.compile(r"libnvidia-(compute|gl|ml)|nvidia-(driver|dkms|kernel|headless|open)|cuda-drivers")


class _Around(TypedDict, total=False):
    signed: tuple[str, ...]
    headers: str


@dataclass(frozen=True)
class Goal:
    """The driver a host is to have. ``keep``: the installed version is good enough to stay as it is.

    ``lacks``: why apt must do something; ``module_missing``: the running kernel has no module that loads.
    """

    package: str
    branch: Branch | None
    fabric_manager: str = ""
    keep: str = ""
    lacks: tuple[str, ...] = ()
    module_missing: bool = False
    signed: tuple[str, ...] = ()
    headers: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Packages apt is asked about."""
        return tuple(n for n in (self.package, self.fabric_manager, *self.signed, self.headers) if n)


def choose(facts: HostFacts, floor: str, drivers: Drivers) -> Goal | None:
    """The goal for the cards on this host's bus; None without a card. CheckRefused where nobody can tell."""
    devices = _devices(facts)
    chips = [_chip(facts, d["device"], drivers) for d in devices if d["kind"] == "gpu"]
    if not chips or _works_without_package(facts, floor):
        return None
    module = _module(facts, chips)
    switched = any(d["kind"] == "nvswitch" for d in devices)
    package, version = _installed(facts)
    unfit = _unfit(facts, floor, module, switched=switched)
    no_module = _module_lacks(facts) if package else ()
    fabric = fabric_lacks(facts, version) if package and switched else ()
    if package and not unfit:
        branch, keep = drivers.branch_of(version), version
    else:
        branch, keep = _branch(facts, floor, drivers), ""
        server = switched or any(c.datacenter for c in chips) or "-server" in (package or "")
        package = branch.package(server=server, open_module=module != "closed")
    return Goal(
        package=package,
        branch=branch,
        fabric_manager=branch.fabric_manager if branch and switched else "",
        keep=keep,
        lacks=tuple(dict.fromkeys([*unfit, *fabric, *no_module])),
        module_missing=bool(no_module) or not keep,
        **_around(facts, package, drivers),
    )


def _around(facts: HostFacts, package: str, drivers: Drivers) -> "_Around":
    """Packages that give the running kernel a module: signed ones under Secure Boot, else headers."""
    kernel = facts.value("os.kernel", str) or ""
    words = {
        "suffix": package.removeprefix("nvidia-driver-"),
        "kernel": kernel,
        "flavour": kernel.split("-", 2)[-1],
    }
    if facts.value("driver.secure_boot", bool):
        return {"signed": tuple(t.format(**words) for t in drivers.packages.signed)}
    return {"headers": drivers.packages.headers.format(**words)}


def _devices(facts: HostFacts) -> list[dict[str, str]]:
    fact = facts.get("driver.devices")
    if isinstance(fact, Missing):
        raise refused(facts, f"nobody could see what is on the PCI bus: {fact.reason}", "lspci -d 10de:")
    return [d for d in fact.value if d.get("driver") != "vfio-pci"]


def _chip(facts: HostFacts, device: str, drivers: Drivers) -> Chip:
    chip = drivers.chip_of(device)
    if chip is None:
        raise refused(
            facts,
            f"PCI device {device} is not in the catalogue: which driver that card needs is not known",
            "add its chip to inventory/engines/drivers.toml, or install the driver by hand",
        )
    return chip


def _module(facts: HostFacts, chips: list[Chip]) -> str:
    """closed, open, or either: the kernel module that all cards of the host run on."""
    needs = {c.module for c in chips} - {"either"}
    if len(needs) > 1:
        names = " and ".join(sorted({c.architecture for c in chips}))
        raise refused(
            facts, f"no kernel module runs {names} cards at once", "put them into different machines"
        )
    return needs.pop() if needs else "either"


def _branch(facts: HostFacts, floor: str, drivers: Drivers) -> Branch:
    system, release = facts.value("os.id", str), facts.value("os.version_id", str)
    branch = drivers.branch_for(floor)
    if branch is None:
        raise refused(facts, f"no catalogued driver branch reaches {floor}", "install the driver by hand")
    if (system, release) != ("ubuntu", branch.ubuntu):
        name = facts.value("os.pretty", str) or "an unknown system"
        raise refused(
            facts,
            f"the catalogue has driver packages for Ubuntu {branch.ubuntu}, the host runs {name}",
            "install the driver by hand, then provision without --install-driver",
        )
    return branch


def _installed(facts: HostFacts) -> tuple[str | None, str]:
    """The driver's package and its upstream version; refused where a driver is there that no package owns."""
    fact = facts.get("driver.package")
    if isinstance(fact, Missing):
        raise refused(facts, f"the installed packages could not be read: {fact.reason}", "dpkg -l")
    return fact.value, upstream(facts.value("driver.package_version", str))


def foreign(facts: HostFacts) -> str:
    """The version of a driver on disk that no package brought (NVIDIA's .run file); "" when there is none."""
    if any(_PARTS.match(name) for name in facts.value("driver.packages", dict) or {}):
        return ""
    for path in ("driver.library_version", "driver.module_file.version"):
        version = facts.value(path, str)
        if version and version[0].isdigit():
            return version
    return ""


def _works_without_package(facts: HostFacts, floor: str) -> bool:
    """A driver that NVIDIA's installer brought, new enough and answering, is left alone."""
    version = foreign(facts)
    return bool(version and not older(version, floor) and _state(facts) == "")


def _unfit(facts: HostFacts, floor: str, module: str, *, switched: bool) -> list[str]:
    """Why the installed driver package itself must be replaced."""
    package, version = _installed(facts)
    if not package:
        return ["no driver package is installed"]
    found = []
    if older(version, floor):
        found.append(f"driver {version} is older than {floor}")
    is_open = "-open" in package
    if module == "open" and not is_open:
        found.append("the card runs on the open kernel module only")
    if module == "closed" and is_open:
        found.append("the card does not run on the open kernel module")
    if switched and "-server" not in package and fabric_lacks(facts, version):
        found.append("the fabric manager needs the -server flavour")
    return found


def _module_lacks(facts: HostFacts) -> tuple[str, ...]:
    if facts.get("driver.module_file") == Known(None):
        return (f"kernel {facts.value('os.kernel', str)} has no NVIDIA module",)
    if _state(facts) == "driver-secure-boot":
        return ("Secure Boot refuses the module that is installed",)
    return ()


def fabric_lacks(facts: HostFacts, driver: str) -> tuple[str, ...]:
    manager = facts.value("driver.fabric_manager", dict) or {}
    if not manager.get("installed"):
        return ("the NVSwitches have no fabric manager",)
    version = upstream(manager.get("version"))
    return (f"the fabric manager is {version}, the driver {driver}",) if version != driver else ()


def _state(facts: HostFacts) -> str:
    try:
        return rules.state(facts)
    except NotLooked:
        return ""


def older(version: str, floor: str) -> bool:
    if not floor:
        return False
    return not version or Version(version).release < Version(floor).release


def refused(facts: HostFacts, message: str, hint: str) -> CheckRefused:
    return CheckRefused(f"--install-driver: {message}", hint=hint, host=facts.host)
