"""Which release a host goes back to, and what it needs to know about it. Read from the host alone."""

from typing import Any

from checks.facts import HostFacts
from inventory.errors import CheckRefused, UsageError
from provision.audit import read_audit, served_for_good
from provision.observe import probe
from provision.rollout.plan import Member
from provision.shell import Shell

__all__ = ["former_release", "releases_of", "resolve_rollback"]


def releases_of(facts: HostFacts, deployment: str) -> dict[str, dict[str, Any]]:
    """The complete releases of a deployment on this host, by id."""
    found = facts.value("eyas.releases", list) or []
    return {r["id"]: r for r in found if r.get("complete") is True and r.get("deployment") == deployment}


def former_release(shell: Shell, deployment: str, facts: HostFacts) -> str | None:
    """The one that served before the current one and was proven: never one that a gate sent back."""
    current = (facts.value("eyas.current", dict) or {}).get(deployment)
    there = {r for r, told in releases_of(facts, deployment).items() if told.get("proven") and r != current}
    served = [e["release"] for e in served_for_good(read_audit(shell)) if e.get("deployment") == deployment]
    noted = next((r for r in reversed(served) if r in there), None)
    return noted or (next(iter(there)) if len(there) == 1 else None)


def resolve_rollback(shell: Shell, member: Member, to: str | None) -> Member:
    name = member.deployment.get("name") or _only(shell)
    facts = probe(shell, [name])
    current = (facts.value("eyas.current", dict) or {}).get(name)
    there = releases_of(facts, name)
    wanted = to or former_release(shell, name, facts)
    if wanted is None or wanted not in there:
        known = ", ".join(sorted(there)) or "none"
        text = f"release {wanted} is not here" if wanted else f"no former release of {name} is recorded"
        raise CheckRefused(f"{text} (there are: {known})", hint="invoke releases", host=shell.host.name)
    release = there[wanted]
    port = (release.get("endpoint") or {}).get("port")
    return Member(
        host=member.host,
        deployment={"name": name, "port": port, "draft": release.get("draft") or {}},
        state="same" if wanted == current else "pending",
        want=wanted,
        former=current,
        baseline=wanted if release.get("proven") else None,
        notes=() if release.get("proven") else (f"release {wanted} was never proven on this host",),
    )


def _only(shell: Shell) -> str:
    current = probe(shell).value("eyas.current", dict) or {}
    if len(current) != 1:
        raise UsageError(
            f"the host serves {', '.join(sorted(current)) or 'nothing'}",
            hint="--deployment NAME",
            host=shell.host.name,
        )
    return str(next(iter(current)))
