"""The bridge between facts, the engine catalogue and the rules: what a release asks, what a host has."""

from checks.facts import HostFacts
from checks.preconditions.want import Floors
from inventory.catalogue import EngineRelease
from inventory.model import Device
from inventory.resolve import HostFloors

__all__ = ["floors_of", "host_floors"]


def floors_of(release: EngineRelease, device: Device = "cuda") -> Floors:
    """What the wheels of a release run on; those for the CPU ask nothing of a driver or a card."""
    stack, cpu = release.stack, release.cpu
    name = release.engine, release.version
    if device == "cpu":
        torch, python, glibc = (
            (cpu.torch, cpu.python, cpu.glibc) if cpu else (stack.torch, stack.python, stack.glibc)
        )
        return Floors(*name, torch, python=str(python), glibc=glibc)
    return Floors(
        *name,
        stack.torch,
        stack.cuda,
        stack.driver_floor,
        str(stack.python),
        stack.glibc,
        stack.compute_capability,
    )


def host_floors(facts: HostFacts, device: Device = "cuda") -> HostFloors:
    """A host as `resolve_version` compares it; with mixed cards the oldest capability counts."""
    driver = facts.value("driver.driver_version", str) or facts.value("driver.module_version", str)
    return HostFloors(
        driver=driver if driver and driver[0].isdigit() else None,
        glibc=facts.value("os.glibc", str),
        python=facts.value("python.version", str),
        compute_capability=_oldest_capability(facts),
        device=device,
    )


def _oldest_capability(facts: HostFacts) -> str | None:
    gpus = facts.value("gpus", list) or []
    found = [g["cc"] for g in gpus if isinstance(g.get("cc"), str)]
    return min(found, key=lambda cc: tuple(int(n) for n in cc.split(".")), default=None)
