"""A driver that answers, but not well enough: its age, its fabric manager, what may replace it."""

import re
from collections.abc import Iterator
from typing import Any

from checks.facts import HostFacts, Missing
from checks.outcome import Severity
from checks.preconditions.common import do, seen, version
from checks.preconditions.driver import INSTALL
from checks.preconditions.want import Want
from checks.rule import Found, NotApplicable, NotLooked, known, need, rule

__all__ = ["RULES"]

DRIVER_PACKAGE = re.compile(r"(nvidia-|libnvidia-|linux-modules-nvidia-|cuda-drivers)")


@rule("driver-too-old", needs_cards=True)
def too_old(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The driver is older than the CUDA build of the wheels needs."""
    if want.driver_will_be_installed or not (want.floors and want.floors.driver):
        raise NotApplicable(
            "--install-driver" if want.driver_will_be_installed else "no release to compare with"
        )
    have = _driver_version(facts)
    if version(have, "driver.module_version") < version(want.floors.driver, "driver floor"):
        yield Found(
            f"the driver is {have}, {want.floors.label} needs {want.floors.driver} or newer",
            seen("driver.module_version", have),
            do("install a newer driver", INSTALL.format(host=facts.host), value=want.floors.driver)
            + do("or serve a release that this driver runs", value="engine_version: auto"),
        )


def _driver_version(facts: HostFacts) -> str:
    """The loaded module's version; NVML's word where the module has no version file."""
    for path in ("driver.module_version", "driver.driver_version", "driver.library_version"):
        value = known(facts, path)
        if isinstance(value, str) and re.match(r"\d", value):
            return value
    fact = facts.get("driver.nvml_error")
    raise NotLooked("no driver version: " + (fact.reason if isinstance(fact, Missing) else str(fact.value)))


@rule("driver-reboot-pending", severity=Severity.WARNING, needs_cards=True)
def reboot_pending(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A new driver or kernel waits for a reboot."""
    loaded, on_disk = known(facts, "driver.module_version"), known(facts, "driver.module_file")
    newer = on_disk.get("version") if isinstance(on_disk, dict) else None
    if loaded and newer and newer != loaded and re.match(r"\d", loaded):
        yield Found(
            f"driver {loaded} is loaded, {newer} is on disk: the next reboot changes it",
            seen("driver.module_file", newer),
            do("reboot now, before serving", "sudo reboot"),
        )
        return
    waiting = need(facts, "driver.reboot_required")
    names = [p for p in waiting["packages"] if DRIVER_PACKAGE.match(p) or p.startswith("linux-")]
    if waiting["required"] and names:
        yield Found(
            "a reboot is pending for " + ", ".join(names[:4]),
            seen("driver.reboot_required", " ".join(names)),
            do("reboot now, before serving", "sudo reboot"),
        )


@rule("driver-fabric-manager", needs_cards=True)
def fabric_manager(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The NVSwitch fabric is not up, so CUDA fails to start with error 802."""
    if any(d.get("kind") == "nvswitch" for d in known(facts, "driver.devices", [])):
        yield from _manager(facts)
    states = [
        (g["index"], g["fabric"]["state"], g["fabric"]["status"])
        for g in need(facts, "gpus")
        if isinstance(g.get("fabric", {}).get("state"), str)
    ]
    waiting = [
        s for s in states if s[1] in {"not_started", "in_progress"} or (s[1] == "completed" and s[2] != 0)
    ]
    if waiting:
        index, fabric, status = waiting[0]
        yield Found(
            f"card {index}: the fabric is {fabric}, status {status}; it must be completed with status 0",
            seen(f"gpus.{index}.fabric", f"{fabric} {status}"),
            do("restart the fabric manager and read its log", "sudo systemctl restart nvidia-fabricmanager"),
        )


def _manager(facts: HostFacts) -> Iterator[Found]:
    have = need(facts, "driver.fabric_manager")
    driver = _driver_version(facts)
    branch = driver.split(".")[0]
    if not have["installed"]:
        yield Found(
            f"the host has NVSwitches but no fabric manager; driver {driver} needs the same version of it",
            seen("driver.fabric_manager.installed", "no"),
            do(
                "install it", f"sudo apt-get install -y nvidia-fabricmanager-{branch}={driver}*", value=driver
            ),
        )
        return
    told = re.match(r"(?:\d+:)?([\d.]+)", str(have["version"]))
    if told and told.group(1) != driver:
        yield Found(
            f"the fabric manager is {told.group(1)}, the driver is {driver}: they must be equal",
            seen("driver.fabric_manager.version", have["version"]),
            do(
                "install the equal version",
                f"sudo apt-get install -y {have['package']}={driver}*",
                value=driver,
            ),
        )
    if need(facts, "driver.fabric_manager.active") != "active":
        yield Found(
            f"the fabric manager is {have.get('active') or 'not started'}, it must be active",
            seen("driver.fabric_manager.active", have.get("active")),
            do("start it", "sudo systemctl enable --now nvidia-fabricmanager"),
        )


@rule("driver-not-held", severity=Severity.WARNING, needs_cards=True)
def not_held(facts: HostFacts, want: Want) -> Iterator[Found]:
    """Unattended upgrades may replace the driver under the running engine."""
    package = need(facts, "driver.package")
    if not package:
        raise NotApplicable("the driver did not come from a package")
    upgrades = need(facts, "driver.unattended_upgrades")
    if not (upgrades["enabled"] and upgrades["installed"] is True) or package in need(facts, "driver.holds"):
        return
    if any(_covers(pattern, package) for pattern in upgrades["blacklist"]):
        return
    yield Found(
        f"{package} is neither held nor kept from unattended upgrades, which are on",
        seen("driver.unattended_upgrades", upgrades),
        do("hold the driver's packages", f"sudo apt-mark hold {' '.join(_driver_packages(facts))}"),
    )


def _covers(pattern: str, package: str) -> bool:
    try:
        return bool(re.match(pattern, package))
    except re.error:
        return False


def _driver_packages(facts: HostFacts) -> list[Any]:
    return [p for p in known(facts, "driver.packages", {}) if DRIVER_PACKAGE.match(p)][:20]


RULES = (too_old, reboot_pending, fabric_manager, not_held)
