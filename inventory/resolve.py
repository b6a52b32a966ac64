"""`engine_version: auto`: the newest release whose floors this host meets, and why none newer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from inventory.catalogue import Catalogue, EngineRelease
from inventory.errors import CheckRefused
from inventory.model import Device

__all__ = ["HostFloors", "Resolution", "floors_missed", "locked_versions", "resolve_version"]

LOCKS = Path(__file__).resolve().parent / "locks"


@dataclass(frozen=True)
class HostFloors:
    """What of a host decides which wheels run. None: nobody could read it, so it is not compared."""

    driver: str | None = None
    glibc: str | None = None
    python: str | None = None
    compute_capability: str | None = None
    device: Device = "cuda"


@dataclass(frozen=True)
class Resolution:
    """The version, and one sentence per newer version passed over and per fact that was not known."""

    version: str
    reasons: tuple[str, ...] = ()


def resolve_version(
    catalogue: Catalogue,
    engine: str,
    wanted: str,
    *,
    driver: str | None,
    glibc: str | None,
    python: str | None,
    compute_capability: str | None,
    device: Device = "cuda",
    candidates: Sequence[str] | None = None,
) -> Resolution:
    """The version to run: ``wanted`` itself, or for ``auto`` the newest candidate that fits this host.

    ``candidates`` default to the versions with a committed wheel lock for the device. Raises UsageError for
    an unknown version and CheckRefused, with the way out, when the version (or every candidate) can't run.
    """
    host = HostFloors(driver, glibc, python, compute_capability, device)
    if wanted != "auto":
        release = catalogue.release(engine, wanted)
        if missed := floors_missed(release, host):
            raise _refused(f"{engine} {wanted} can't run on this host: {'; '.join(missed)}", missed, host)
        return Resolution(release.version, _unread(host))
    return _newest(catalogue, engine, host, candidates)


def _newest(
    catalogue: Catalogue, engine: str, host: HostFloors, candidates: Sequence[str] | None
) -> Resolution:
    versions = locked_versions(engine, host.device) if candidates is None else tuple(candidates)
    if not versions:
        raise CheckRefused(
            f"engine_version auto: no wheel lock for {engine} on {host.device} to choose from",
            hint=f"make one: invoke lock --engine {engine} --engine-version VERSION",
        )
    passed: list[str] = []
    missed: tuple[str, ...] = ()
    for version in sorted(versions, key=Version, reverse=True):
        missed = floors_missed(catalogue.release(engine, version), host)
        if not missed:
            return Resolution(version, (*passed, *_unread(host)))
        passed.append(f"not {version}: {'; '.join(missed)}")
    raise _refused(f"no locked {engine} runs on this host: {'. '.join(passed)}", missed, host)


def floors_missed(release: EngineRelease, host: HostFloors) -> tuple[str, ...]:
    """What this host lacks for this release, one phrase each; empty when it fits or nothing is known."""
    if host.device == "cpu":
        return _cpu_missed(release, host)
    stack = release.stack
    low, high = stack.compute_capability
    found = []
    if host.driver and _older(host.driver, stack.driver_floor):
        found.append(
            f"driver {host.driver} is older than {stack.driver_floor}, the floor of CUDA {stack.cuda} wheels"
        )
    if host.compute_capability and _older(host.compute_capability, low):
        found.append(f"the card's compute capability {host.compute_capability} is below {low}")
    if host.compute_capability and _older(high, host.compute_capability):
        found.append(
            f"the card's compute capability {host.compute_capability} is newer than its kernels ({high})"
        )
    found += _userland(host, str(stack.python), stack.glibc)
    return tuple(found)


def _cpu_missed(release: EngineRelease, host: HostFloors) -> tuple[str, ...]:
    if release.cpu is None:
        return ("no CPU build of it is catalogued",)
    return tuple(_userland(host, str(release.cpu.python), release.cpu.glibc))


def _userland(host: HostFloors, python: str, glibc: str) -> list[str]:
    found = []
    if host.python and not _within(host.python, python):
        found.append(f"Python {host.python} is outside {python}")
    if host.glibc and _older(host.glibc, glibc):
        found.append(f"glibc {host.glibc} is older than {glibc}")
    return found


def locked_versions(engine: str, device: Device = "cuda", folder: Path = LOCKS) -> tuple[str, ...]:
    """Versions with a wheel lock, ``ENGINE-VERSION[-...].txt``; "cpu" in the rest marks a CPU lock."""
    pattern = re.compile(rf"{re.escape(engine)}-(?P<version>\d[^-+]*)(?P<rest>[-+].*)?\.txt")
    found = set()
    for path in sorted(folder.glob("*.txt")) if folder.is_dir() else []:
        match = pattern.fullmatch(path.name)
        if match and ("cpu" in (match["rest"] or "")) == (device == "cpu"):
            found.add(match["version"])
    return tuple(sorted(found, key=Version))


def _unread(host: HostFloors) -> tuple[str, ...]:
    names = ["glibc", "python"] + (["driver", "compute_capability"] if host.device == "cuda" else [])
    return tuple(f"{name} not known: its floor was not compared" for name in names if not getattr(host, name))


def _refused(message: str, missed: Sequence[str], host: HostFloors) -> CheckRefused:
    if any(m.startswith("driver") for m in missed):
        hint = "install a newer driver (invoke provision ... --install-driver)"
    elif any(m.startswith("Python") for m in missed):
        hint = "let eyas bring its own Python, or choose another engine version"
    elif host.device == "cpu":
        hint = "choose the engine version that has a CPU build"
    else:
        hint = "choose an engine version for this card (invoke engines), or another host"
    return CheckRefused(message, hint=hint)


def _older(have: str, floor: str) -> bool:
    """Compare as far as the floor is written: "580" accepts every 580.x and newer."""
    try:
        return Version(have).release < Version(floor).release
    except InvalidVersion:
        return False


def _within(version: str, spec: str) -> bool:
    return SpecifierSet(spec).contains(version, prereleases=True)
