"""The ranks of a group as they are wanted: everyone's place, and one release for all."""

from dataclasses import replace
from hashlib import sha256

from checks.facts import HostFacts
from checks.nodes.fabric import Seat, seats
from checks.nodes.traffic import speed
from inventory.errors import CheckRefused
from provision.converge import Options
from provision.nodes.ranks import Rank, each_rank
from provision.nodes.roster import Group
from provision.want import Want, want_for

__all__ = ["as_group", "resolve_group", "seat_group", "with_speed"]


def seat_group(group: Group, facts: list[HostFacts]) -> tuple[Seat, ...]:
    """Every host's place, from their facts in rank order."""
    wishes = {h.name: group.deployments[h.name].interface for h in group.hosts}
    return seats(group.deployment, wishes, facts)


def resolve_group(ranks: list[Rank], seating: tuple[Seat, ...], options: Options) -> None:
    """Each rank's Want, its release named by what all ranks serve."""

    def one(rank: Rank) -> None:
        rank.want = want_for(
            rank.host, rank.deployment, rank.seen(), options.sources, rank.say, seating=seating
        )

    # What the first makes on this machine (wheels, hashes) the others find ready.
    each_rank(ranks, lambda r: one(r) if r is ranks[0] else None)
    each_rank(ranks, lambda r: one(r) if r is not ranks[0] else None)
    wants = as_group([r.wanted() for r in ranks])
    for r, w in zip(ranks, wants, strict=True):
        r.want, r.report.release, r.report.notes = w, w.release.id, list(w.notes)
        with_speed(r)


def as_group(wants: list[Want]) -> list[Want]:
    """One release id for all ranks. Raises CheckRefused where they would not serve the same."""
    first = wants[0]
    for w in wants[1:]:
        told = {
            "engine": (first.engine.version, w.engine.version),
            "wheel lock": (first.lock.name, w.lock.name),
            **{
                f"{role} weights": (m.commit, w.manifests[role].commit) for role, m in first.manifests.items()
            },
        }
        differ = [f"{k} {a} and {b}" for k, (a, b) in told.items() if a != b]
        if differ:
            hosts = [m["host"] for m in first.group["members"]]
            raise CheckRefused(
                f"ranks-differ: {', '.join(hosts)} would not serve the same: {'; '.join(differ)}",
                hint="pin engine_version and lock in the deployment; compare: invoke drift",
            )
    digest = sha256("".join(w.release.id for w in wants).encode()).hexdigest()[:16]
    return [replace(w, release=replace(w.release, id=digest)) for w in wants]


def with_speed(rank: Rank) -> None:
    """What was measured belongs to every Want that is made after it."""
    if rank.links:
        want, slowest = rank.wanted(), min(rank.links.values())
        rank.want = replace(want, group={**want.group, "measured_mbit": slowest})
        head = want.group["members"][0]["host"]
        rank.report.notes += [f"iperf3 {name} to {head}: {speed(m)}" for name, m in rank.links.items()]
