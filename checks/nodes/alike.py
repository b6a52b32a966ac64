"""What should be equal on the hosts of a group: what they serve, cards, driver, clock, packet size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from checks.facts import HostFacts
from checks.outcome import Evidence, Finding, Fix, Severity
from checks.rule import code_of

__all__ = ["compare", "members_of"]

#: Seconds between two hosts' clocks beyond which their journals can't be put in order.
SKEW_S = 5.0


def compare(
    facts: Sequence[HostFacts], members: Sequence[Mapping[str, Any]], deployment: str = ""
) -> list[Finding]:
    """Findings of the hosts that differ from rank 0's. A value nobody could read is not compared.

    ``deployment``: compare what is served of it, too; a group that is about to be switched is judged without.
    """
    port = {str(m["host"]): str(m["interface"]) for m in members}
    found = _served(facts, deployment) if deployment else []
    looks: list[tuple[str, str, Callable[[HostFacts], Any], str]] = [
        ("ranks-differ", "gpus", _cards, "the slowest and smallest card sets the pace of all"),
        ("ranks-differ", "driver.module_version", _driver, "NCCL and kernels differ with the driver"),
        ("ranks-differ", "network.interfaces mtu", lambda f: _mtu(f, port[f.host]), "large packets get lost"),
    ]
    for slug, source, read, why in looks:
        first = read(facts[0])
        for f in facts[1:]:
            mine = read(f)
            if first is not None and mine is not None and mine != first:
                found.append(_finding(slug, f.host, source, f"{mine} here, {first} on {facts[0].host}", why))
    return found + _clocks(facts)


def members_of(group: object) -> list[Mapping[str, Any]]:
    """The hosts of a release's ``group`` in rank order; nothing where there is none, or it was edited."""
    if not isinstance(group, Mapping) or not isinstance(group.get("rank"), int):
        return []
    told = group.get("members")
    if not isinstance(told, list) or not all(isinstance(m, Mapping) for m in told):
        return []
    return told if all({"host", "interface"} <= set(m) for m in told) else []


def _served(facts: Sequence[HostFacts], deployment: str) -> list[Finding]:
    """Errors: ranks that serve different things don't come together, or answer nonsense."""
    told = [_release(f, deployment) for f in facts]
    found = []
    for f, mine in zip(facts[1:], told[1:], strict=True):
        differ = [
            f"{what} {mine[what]} here, {told[0][what]} on {facts[0].host}"
            for what in mine
            if what in told[0] and mine[what] != told[0][what]
        ]
        if differ:
            text = f"the ranks serve different releases of {deployment}: {'; '.join(differ)}"
            finding = _finding(
                "ranks-differ", f.host, "eyas.current", text, "one release serves on all ranks"
            )
            found.append(replace(finding, severity=Severity.ERROR))
    return found


def _release(facts: HostFacts, deployment: str) -> dict[str, str]:
    """What the release that is served is made of; of one that can't be read, its id alone."""
    current = facts.value("eyas.current", dict)
    if current is None:
        return {}
    rid = str(current.get(deployment, "none"))
    releases = facts.value("eyas.releases", list) or []
    r = next((r for r in releases if isinstance(r, Mapping) and r.get("id") == rid), {})
    lock = r.get("lock")
    words = {
        "release": rid,
        "engine": r.get("engine_version"),
        "wheel lock": lock.get("id") if isinstance(lock, Mapping) else None,
        **{f"{role} weights": w.get("path") for role, w in (r.get("weights") or {}).items()},
    }
    return {k: str(v) for k, v in words.items() if v}


def _cards(facts: HostFacts) -> str | None:
    gpus = facts.value("gpus", list)
    if gpus is None:
        return None
    return ", ".join(sorted(f"{g.get('name', g.get('error'))}" for g in gpus)) or "no card"


def _driver(facts: HostFacts) -> str | None:
    return facts.value("driver.module_version", str)


def _mtu(facts: HostFacts, interface: str) -> int | None:
    for i in facts.value("network.interfaces", list) or []:
        if i.get("name") == interface and isinstance(i.get("mtu"), int):
            return int(i["mtu"])
    return None


def _clocks(facts: Sequence[HostFacts]) -> list[Finding]:
    """Each host's clock against the operator's at the time of its probe, so that looks may be apart."""
    ahead = {f.host: t - f.taken_at for f in facts if (t := f.value("os.time", float)) is not None}
    first = ahead.get(facts[0].host)
    found = []
    for host, seconds in ahead.items():
        if first is not None and abs(seconds - first) > SKEW_S:
            text = f"the clock is {seconds - first:+.0f} s from that of {facts[0].host}"
            found.append(_finding("clock-skew", host, "os.time", text, "journals can't be put in order"))
    return found


def _finding(slug: str, host: str, source: str, text: str, why: str) -> Finding:
    return Finding(
        code=code_of(slug),
        slug=slug,
        severity=Severity.WARNING,
        title="the hosts of one group differ",
        cause=text,
        evidence=(Evidence(source, text),),
        fix=(Fix("make the hosts of the group alike", why=why),),
        host=host,
    )
