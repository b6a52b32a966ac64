"""What is left to do until a host has its driver. Follows from facts and from what apt knows, so that a run
that was cut short anywhere is finished by the next one. Nothing here touches a host.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from checks.facts import HostFacts
from inventory.errors import CheckRefused
from provision.apt import AptState, Simulation, upstream, way_out
from provision.drivergoal import Goal, foreign, older, refused

__all__ = ["Todo", "decide", "is_driver_package", "refuse_simulation", "specs_for"]

DRIVER_PACKAGE = re.compile(
    r"(lib)?nvidia-|cuda-drivers|linux-(modules|objects|signatures)-nvidia-|xserver-xorg-video-nvidia|nvlsm"
)
_LOADED_BY_OTHERS = {"nouveau": "driver.nouveau", "nova_core": "driver.nova"}


@dataclass(frozen=True)
class Todo:
    """What is left, in the order it is done. ``version``: the driver that runs when all is done."""

    version: str
    repair: bool = False
    install: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    unhold: tuple[str, ...] = ()
    keep_out: tuple[str, ...] = ()
    hold: bool = False
    fabric_service: bool = False
    reboot: bool = False
    stops: tuple[str, ...] = field(default=())

    @property
    def nothing(self) -> bool:
        return not (
            self.repair or self.install or self.keep_out or self.hold or self.fabric_service or self.reboot
        )


def specs_for(facts: HostFacts, floor: str, goal: Goal, apt: AptState) -> tuple[str, ...]:
    """What apt is to install (``NAME=VERSION``); empty when all is there. CheckRefused when apt lacks it.

    While the lists may be stale, what they lack is named without version.
    """
    if not goal.lacks:
        return ()
    if (version := foreign(facts)) and not apt.interrupted:
        raise refused(
            facts,
            f"driver {version} is installed, but no package owns it: NVIDIA's .run installer put it there",
            "sudo nvidia-uninstall && sudo reboot   # then run the same command again",
        )
    specs = _added(facts, goal, apt) if goal.keep else None
    if specs is None:
        specs = _whole(facts, floor, goal, apt)
    return specs


def _added(facts: HostFacts, goal: Goal, apt: AptState) -> tuple[str, ...] | None:
    """What completes the driver that stays; None when apt no longer has what fits exactly that version."""
    if goal.branch is None and not goal.module_missing:
        raise refused(
            facts,
            f"{'; '.join(goal.lacks)}; branch {goal.keep} is not in the catalogue",
            f"install the fabric manager of exactly {goal.keep} by hand",
        )
    fabric = _fabric_spec(facts, goal, goal.keep, apt)
    if fabric is None:
        return None
    specs = (*fabric, *(_module_specs(facts, goal, apt) if goal.module_missing else ()))
    if not specs:
        if not apt.fresh:
            return goal.signed[-1:] or (goal.headers,)
        raise refused(
            facts,
            f"{'; '.join(goal.lacks)}, and apt has no {goal.headers} to build one with",
            "boot a kernel that apt has headers for: sudo apt-get install -y linux-generic && sudo reboot",
        )
    return specs


def _whole(facts: HostFacts, floor: str, goal: Goal, apt: AptState) -> tuple[str, ...]:
    candidate = apt.candidates.get(goal.package)
    version = upstream(candidate)
    fabric = _fabric_spec(facts, goal, version, apt)
    if not apt.fresh and (older(version, floor) or fabric is None):
        return tuple(filter(None, (goal.package, goal.fabric_manager)))
    if candidate is None:
        raise _absent(facts, goal.package, apt)
    if older(version, floor):
        raise refused(
            facts,
            f"the newest {goal.package} that apt has is {version}, {floor} or newer is needed",
            "enable noble-updates and restricted in /etc/apt/sources.list.d/ubuntu.sources",
        )
    if fabric is None:
        have = ", ".join(apt.versions.get(goal.fabric_manager, ())) or "none"
        raise refused(
            facts,
            f"{goal.fabric_manager} must be exactly {version} like the driver; apt has {have}",
            f"sudo apt-get update; apt-cache madison {goal.fabric_manager} {goal.package}",
        )
    return (f"{goal.package}={candidate}", *fabric, *_module_specs(facts, goal, apt))


def _absent(facts: HostFacts, name: str, apt: AptState) -> CheckRefused:
    failed = f"\n{apt.update_error}" if apt.update_error else ""
    way = way_out(failed) if failed else "sudo add-apt-repository -y restricted && sudo apt-get update"
    return refused(facts, f"apt has no package {name}{failed}", way)


def _fabric_spec(facts: HostFacts, goal: Goal, version: str, apt: AptState) -> tuple[str, ...] | None:
    """Nothing when none is needed or it is there; None when apt has none of exactly that version."""
    manager = facts.value("driver.fabric_manager", dict) or {}
    if not goal.fabric_manager or (manager.get("installed") and upstream(manager.get("version")) == version):
        return ()
    equal = [v for v in apt.versions.get(goal.fabric_manager, ()) if upstream(v) == version]
    return (f"{goal.fabric_manager}={equal[0]}",) if equal else None


def _module_specs(facts: HostFacts, goal: Goal, apt: AptState) -> tuple[str, ...]:
    """What gives the running kernel a module: signed ones under Secure Boot, else headers to build with."""
    signed = tuple(n for n in goal.signed if n in apt.candidates)
    if goal.signed and not signed and apt.fresh:
        raise refused(
            facts,
            f"Secure Boot is on and apt has no signed module ({goal.signed[0]}); a built one is refused",
            "turn Secure Boot off in the firmware, or enrol a key and install the driver by hand: "
            "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der",
        )
    return signed or ((goal.headers,) if goal.headers in apt.candidates else ())


def refuse_simulation(facts: HostFacts, goal: Goal, plan: Simulation, apt: AptState, spare_mib: int) -> None:
    """CheckRefused when apt can't do it, would take away what isn't the driver's, or has no room."""
    if plan.error:
        raise refused(
            facts,
            f"apt can't install {goal.package}:\n{plan.error}",
            "sudo apt-get -f install; apt-mark showhold",
        )
    others = [n for n in plan.removed if not DRIVER_PACKAGE.match(n)]
    if others:
        raise refused(
            facts,
            f"apt would also remove {', '.join(others[:6])}",
            f"look at it with: apt-get install --simulate {goal.package}",
        )
    needs = {"/var/cache/apt": plan.download, "/usr": plan.unpack, "/boot": spare_mib << 20}
    for mount, free in apt.free.items():
        need = sum(size for folder, size in needs.items() if _mount_of(folder, apt.free) == mount)
        if need > free:
            raise refused(
                facts,
                f"the driver needs {need >> 20} MiB on {mount}, {free >> 20} MiB are free",
                f"make room: sudo apt-get clean; df -h {mount}",
            )


def _mount_of(folder: str, mounts: Iterable[str]) -> str:
    """The longest of the mounts that holds the folder."""
    inside = [m for m in mounts if m in {"/", folder} or folder.startswith(m.rstrip("/") + "/")]
    return max(inside, key=len, default="/")


def decide(facts: HostFacts, goal: Goal, specs: tuple[str, ...], apt: AptState) -> Todo:
    """What is left to do. CheckRefused when somebody else holds what must be replaced."""
    ours, theirs = _holds(facts)
    new_driver = any(s.partition("=")[0] == goal.package for s in specs)
    if new_driver and theirs:
        raise refused(
            facts,
            f"{', '.join(theirs[:4])} is held: somebody wants it to stay",
            f"if it may be replaced: sudo apt-mark unhold {' '.join(theirs[:8])}",
        )
    version = _version(goal, specs)
    loaded = facts.value("driver.module_version", str) or ""
    others = tuple(n for n, path in _LOADED_BY_OTHERS.items() if facts.value(path, bool) and not loaded)
    stale = bool(goal.keep and re.match(r"\d", loaded) and loaded != goal.keep)
    reboot = bool(new_driver or apt.marked or stale or others or (goal.module_missing and not loaded))
    active = facts.value("driver.fabric_manager.active", str) == "active"
    return Todo(
        version=version,
        repair=bool(apt.interrupted and (specs or any("nvidia" in line for line in apt.interrupted))),
        install=specs,
        why=goal.lacks if specs else (),
        unhold=ours if new_driver else (),
        keep_out=others,
        hold=bool(specs) or not _kept(facts, version),
        fabric_service=bool(goal.fabric_manager) and (bool(specs) or not active),
        reboot=reboot,
        stops=tuple(_disturbed(facts)) if reboot else (),
    )


def _version(goal: Goal, specs: tuple[str, ...]) -> str:
    """The driver there will be; only its branch while apt's lists don't say more."""
    for spec in specs:
        name, _, version = spec.partition("=")
        if name == goal.package and goal.branch:
            return upstream(version) or str(goal.branch.branch)
    return goal.keep


def _holds(facts: HostFacts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(ours, somebody else's): what eyas holds is also named in its list for unattended upgrades."""
    listed = set(facts.value("driver.unattended_upgrades.blacklist", list) or [])
    held = [n for n in facts.value("driver.holds", list) or [] if DRIVER_PACKAGE.match(n)]
    return (
        tuple(n for n in held if f"{n}$" in listed),
        tuple(n for n in held if f"{n}$" not in listed),
    )


def _kept(facts: HostFacts, version: str) -> bool:
    names = {n for n in facts.value("driver.packages", dict) or {} if is_driver_package(n, version)}
    listed = set(facts.value("driver.unattended_upgrades.blacklist", list) or [])
    held = set(facts.value("driver.holds", list) or [])
    return names <= held and {f"{n}$" for n in names} <= listed


def is_driver_package(name: str, version: str) -> bool:
    """Whether a package belongs to that version's branch of the driver (nvidia-settings does not)."""
    branch = re.escape(version.partition(".")[0])
    return bool(DRIVER_PACKAGE.match(name) and re.search(rf"-{branch}(-|$)", name))


def _disturbed(facts: HostFacts) -> Iterator[str]:
    """What a reboot ends, in words for the operator."""
    units = facts.value("eyas.units", dict) or {}
    yield from (n for n, u in units.items() if n.endswith(".service") and u.get("active") == "active")
    programs = {p.get("pid") for g in facts.value("gpus", list) or [] for p in g.get("processes") or []}
    if programs:
        yield f"{len(programs)} program(s) on the cards"
