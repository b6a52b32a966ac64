"""What the unit needs of the host: its port, and limits the process really gets."""

from collections.abc import Iterator
from typing import Any

from checks.facts import HostFacts
from checks.outcome import Severity
from checks.preconditions.common import do, seen
from checks.preconditions.want import Want
from checks.rule import Found, NotApplicable, NotLooked, need, rule

__all__ = ["RULES"]

NOFILE = 65536
EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
SAME = {"localhost": "127.0.0.1"}


@rule("port-in-use")
def port_free(facts: HostFacts, want: Want) -> Iterator[Found]:
    """Another process listens on the port the endpoint wants."""
    if want.port is None:
        raise NotApplicable("no port is asked for")
    for holder in need(facts, "ports"):
        if (
            holder["port"] == want.port
            and _overlap(holder["address"], want.address)
            and not _ours(holder, want)
        ):
            yield Found(
                f"port {want.port} on {holder['address']} is held by {_who(holder)}, "
                f"{want.unit or 'the endpoint'} wants it on {want.address}",
                seen("ports", f"{holder['address']}:{holder['port']} {_who(holder)}"),
                do(
                    "stop it, or give the deployment another port",
                    _stop(holder),
                    value=f"port: {want.port + 1}",
                ),
            )


def _overlap(theirs: str, ours: str) -> bool:
    ours = SAME.get(ours, ours)
    return theirs == ours or theirs in EVERYWHERE or ours in EVERYWHERE


def _ours(holder: dict[str, Any], want: Want) -> bool:
    return bool(want.unit) and holder.get("unit") == want.unit


def _who(holder: dict[str, Any]) -> str:
    if not isinstance(holder.get("pid"), int):
        return "a process this login can't see"
    unit = holder.get("unit")
    of = f" of {unit}" if isinstance(unit, str) else ""
    return f"{holder.get('process')} (pid {holder['pid']}{of})"


def _stop(holder: dict[str, Any]) -> str:
    unit = holder.get("unit")
    if isinstance(unit, str) and unit.endswith(".service"):
        return f"sudo systemctl stop {unit}"
    return f"sudo kill {holder['pid']}" if isinstance(holder.get("pid"), int) else "sudo ss -ltnp"


@rule("memlock-limit", severity=Severity.WARNING)
def limits(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The running engine got lower limits than its unit asks for."""
    unit = need(facts, "eyas.units").get(want.unit) if want.unit else None
    if not unit or "missing" in unit:
        raise NotApplicable("our unit does not run")
    got = unit.get("limits")
    if not isinstance(got, dict) or "missing" in got:
        if not unit.get("main_pid"):
            raise NotApplicable("our unit does not run")
        raise NotLooked(f"eyas.units.{want.unit}.limits: {(got or {}).get('missing', 'not probed')}")
    if got.get("memlock") is not None:
        yield Found(
            f"the engine may lock {got['memlock']} bytes of memory, its unit asks for no limit",
            seen(f"eyas.units.{want.unit}.limits.memlock", got["memlock"]),
            do("raise the host's hard limit", "systemctl show -p DefaultLimitMEMLOCK", value="infinity"),
        )
    nofile = got.get("nofile")
    if nofile is not None and nofile < NOFILE:
        yield Found(
            f"the engine may open {nofile} files, it wants {NOFILE}",
            seen(f"eyas.units.{want.unit}.limits.nofile", nofile),
            do("raise LimitNOFILE in the unit", value=str(NOFILE)),
            slug="nofile-limit",
        )


RULES = (port_free, limits)
