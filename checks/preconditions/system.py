"""Operating system, architecture, service manager, tools, clock."""

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from checks.facts import HostFacts, Missing
from checks.outcome import Severity
from checks.preconditions.common import do, seen
from checks.preconditions.want import Want
from checks.rule import Found, NotApplicable, NotLooked, known, need, rule

__all__ = ["RULES"]

HOSTS = Path(__file__).parent / "hosts.toml"
#: Seconds between the operator's clock and the host's: a round trip and a slow login are within the first.
SKEW_WARNING, SKEW_ERROR = 30.0, 300.0


@cache
def _systems() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads(HOSTS.read_text(encoding="utf-8"))["os"]
    return rows


@rule("os-unsupported")
def operating_system(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The operating system is not one eyas provisions."""
    name, release = need(facts, "os.id"), need(facts, "os.version_id")
    pretty = known(facts, "os.pretty") or f"{name} {release}"
    row = next((r for r in _systems() if r["id"] == name and r["version_id"] in {release, "*"}), None)
    wanted = next(r["pretty"] for r in _systems() if r["support"] == "yes")
    if row and row["support"] == "yes":
        return
    grade = Severity.WARNING if row and row["support"] == "warn" else Severity.ERROR
    note = f": {row['note']}" if row else ""
    yield Found(
        f"the host runs {pretty}, eyas provisions {wanted}{note}",
        seen("os.pretty", pretty),
        do(f"install {wanted} on this host, or take another host"),
        grade,
    )


@rule("arch-unsupported")
def architecture(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The wheels are built for another processor architecture."""
    arch = need(facts, "os.arch")
    if arch != want.arch:
        yield Found(
            f"the host is {arch}, the wheel lock is for {want.arch}",
            seen("os.arch", arch),
            do(f"choose a wheel lock for {arch}", value=arch),
        )


@rule("service-manager-missing")
def service_manager(facts: HostFacts, want: Want) -> Iterator[Found]:
    """No systemd runs on the host, so nothing can keep the engine running."""
    services = facts.get("services")
    if need(facts, "tools.systemctl") is None:
        yield Found(
            "systemd is not installed", seen("tools.systemctl", "absent"), do("use a host with systemd")
        )
    elif isinstance(services, Missing):
        if not any(word in services.reason for word in ("to bus", "not been booted")):
            raise NotLooked(f"services: {services.reason}")
        wrapped = known(facts, "os.container")
        yield Found(
            "systemd is installed but not running"
            + (f" (the host is a {wrapped} container)" if wrapped else ""),
            seen("services", services.reason),
            do("provision the machine itself, or a container that boots systemd"),
        )


@rule("tool-missing")
def tools(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A program the chosen way needs is not on the host."""
    if not want.tools:
        raise NotApplicable("no tool is asked for")
    absent = [t for t in want.tools if need(facts, f"tools.{t}") is None]
    if absent:
        names = " ".join(absent)
        yield Found(
            f"not installed: {names}",
            seen("tools", names),
            do(f"install {names}", f"sudo apt-get install -y {names}"),
        )


@rule("clock-skew")
def clock(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The host's clock is wrong: certificates, tokens and package lists are refused."""
    if not facts.taken_at:
        raise NotApplicable("the probe has no operator time")
    skew = need(facts, "os.time") - facts.taken_at
    if abs(skew) <= SKEW_WARNING:
        return
    way = "ahead of" if skew > 0 else "behind"
    synced = known(facts, "os.time_synced")
    yield Found(
        f"the host's clock is {abs(skew):.0f} s {way} the operator's, {SKEW_WARNING:.0f} s are allowed"
        + ("; the kernel holds it for unsynchronised" if synced is False else ""),
        seen("os.time", need(facts, "os.time")),
        do("synchronise the clock", "sudo timedatectl set-ntp true && timedatectl timesync-status"),
        Severity.ERROR if abs(skew) > SKEW_ERROR else Severity.WARNING,
    )


RULES = (operating_system, architecture, service_manager, tools, clock)
