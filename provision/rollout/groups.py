"""A rollout's crew for members that are several hosts: every rank together, or none.

The loop sees one member; here its parts are locked, prepared and switched side by side. Requests, the gate
and the hooks are rank 0's, which has the endpoint.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from inventory.errors import ChangeFailed, CheckRefused, EyasError
from inventory.model import Host
from provision import layout, service
from provision.converge import HostReport, look, plan_changes
from provision.nodes.ranks import GroupStopped, Rank, each_rank
from provision.nodes.reach import refuse_unreachable
from provision.nodes.resolve import resolve_group, seat_group
from provision.nodes.roster import Group
from provision.nodes.switch import GroupSwitch, Over, settle_together, side_by_side
from provision.rollout.crew import HostCrew
from provision.rollout.gate import Verdict
from provision.rollout.plan import Member, host_words
from provision.rollout.resolve import check_member, member_of

__all__ = ["GroupCrew", "blank_group", "merged"]


def blank_group(group: Group, kind: str) -> Member:
    """A group that nobody has looked at yet; a rollback needs no more than names."""

    def words(host: Host) -> dict[str, Any]:
        d = group.deployments[host.name]
        return d.model_dump(mode="json") if kind == "rollout" else {"name": d.name}

    head, *others = group.hosts
    peers = tuple({"host": host_words(h), "deployment": words(h)} for h in others)
    return Member(host_words(head), words(head), "unreachable", peers=peers)


class GroupCrew:
    """`loop.Crew` over a HostCrew; members without peers go straight through."""

    def __init__(self, crew: HostCrew) -> None:
        self.crew = crew

    # ---- rank 0 alone

    def drain(self, member: Member) -> None:
        self.crew.drain(member)

    def restore(self, member: Member) -> None:
        self.crew.restore(member)

    def gate(self, member: Member, release: str, baseline: str | None) -> Verdict:
        verdict = self.crew.gate(member, release, baseline)
        if verdict.green and release == member.want:
            self._share_proof(member, release)
        return verdict

    def _share_proof(self, member: Member, release: str) -> None:
        """So that each rank's host knows the release for a proven one."""
        path = f"{layout.release_dir(release)}/proof.json"
        head, *others = member.parts()
        proof = self.crew.shell(head.as_host()).read(path) if others else None
        for part in others:
            if proof:
                self.crew.shell(part.as_host()).write(path, proof)

    # ---- all ranks

    def resolve(self, member: Member) -> Member:
        if not member.peers:
            return self.crew.resolve(member)
        if member.deployment.get("target"):
            return resolve_group_member(member, self.crew)
        found: dict[str, Member] = {}

        def one(part: Member) -> None:
            found[part.name] = self.crew.resolve(part)

        self._each(member, one)
        return merged([found[p.name] for p in member.parts()])

    def spread(self, members: list[Member], fleet: list[Member]) -> None:
        """From host to host among those that serve alone; a group's hosts fetch in their own ``prepare``."""
        self.crew.spread([m for m in members if not m.peers], [m for m in fleet if not m.peers])

    def prepare(self, member: Member) -> None:
        if not member.peers:
            self.crew.prepare(member)
            return
        if not member.changes:
            return
        ranks = ranks_of(member, self.crew)
        _resolved(ranks, self.crew)
        found = ranks[0].wanted().release.id
        if found != member.want:
            raise ChangeFailed(
                f"the plan says release {member.want}, what would be made now is {found}",
                hint="something the plan was made from has changed: start a new rollout",
                host=member.name,
            )
        _together(ranks, self._prepare)
        _stopped(ranks, lambda: refuse_unreachable(ranks))

    def _prepare(self, rank: Rank) -> None:
        converge = self.crew.converge
        for change in plan_changes(rank.wanted(), rank.seen(), converge, rank.say):
            if not change.disruptive and not change.title.startswith("proof"):
                release = rank.wanted().release.id
                converge.journal.write("change", host=rank.name, release=release, title=change.title)
                rank.say(change.title)
                change.apply(rank.shell)

    def ready(self, member: Member) -> None:
        self._each(member, self.crew.ready)

    def serve(self, member: Member, release: str) -> None:
        if not member.peers:
            self.crew.serve(member, release)
            return
        by = {p.name: p.as_host() for p in member.parts()}
        self._each(member, lambda part: self.crew.take(part.as_host()))
        over = Over(lambda name: self.crew.shell(by[name]), str(member.deployment["name"]))
        settle_together(over, list(by), self.crew.say)
        switch = GroupSwitch(list(by), over, self.crew.say)
        self._each(member, lambda part: self._serve(part, release, switch))

    def _serve(self, part: Member, release: str, switch: GroupSwitch) -> None:
        def activate(on_line: service.OnLine) -> None:
            self.crew.serve(part, release, on_line=on_line)

        def back(message: str) -> None:
            if part.former and part.former != release:
                self.crew.serve(replace(part, want=part.former), part.former)
            raise ChangeFailed(message, host=part.name)

        switch.apply(part.name, activate, back)

    def withdraw(self, member: Member) -> None:
        self._each(member, self.crew.withdraw)

    def back(self, member: Member) -> None:
        self._each(member, self.crew.back)

    def _each(self, member: Member, work: Callable[[Member], None]) -> None:
        parts = member.parts()
        if len(parts) == 1:
            work(member)
            return
        _first(side_by_side({p.name: partial(work, p) for p in parts}), [p.name for p in parts])


def _first(errors: dict[str, EyasError], order: list[str]) -> None:
    """Raise the error that tells most: not of a rank that only went down with another."""
    told = [errors[n] for n in order if n in errors]
    if told:
        error = next((e for e in told if "the group lost" not in e.message), told[0])
        where = error.host or order[0]
        error.message = error.message if where == order[0] else f"{where}: {error.message}"
        raise error


def ranks_of(member: Member, crew: HostCrew) -> list[Rank]:
    """The hosts of a group over the rollout's own connections."""
    ranks = []
    for part in member.parts():
        host, deployment = part.as_host(), part.as_deployment()
        say = partial(crew.say, host.name)
        ranks.append(Rank(host, deployment, crew.shell(host), say, HostReport(host.name)))
    return ranks


def resolve_group_member(member: Member, crew: HostCrew) -> Member:
    """Look at all ranks and decide; changes nothing. Raises CheckRefused for a group that a check refuses."""
    ranks, options = ranks_of(member, crew), crew.converge
    _resolved(ranks, crew)

    def one(rank: Rank) -> Member:
        check_member(rank.seen(), rank.wanted(), options)
        return member_of(rank.host, rank.deployment, rank.seen(), rank.wanted(), options, rank.say)

    return merged([one(r) for r in ranks])


def merged(parts: list[Member]) -> Member:
    """One member of its ranks' members. Raises CheckRefused when they would not move as one."""
    head, *others = parts
    formers = {p.former for p in parts} - {head.want}
    for part in others:
        if part.want != head.want or len(formers) > 1:
            raise CheckRefused(
                f"ranks-differ: {head.name} goes from {head.former} to {head.want}, "
                f"{part.name} from {part.former} to {part.want}",
                hint=f"invoke provision --host {','.join(p.name for p in parts)}",
                host=head.name,
            )
    states = {p.state for p in parts}
    state = next((s for s in ("refused", "unreachable", "pending", "prepare") if s in states), "same")
    titles = dict.fromkeys(f"{p.name}: {t}" for p in parts for t in p.changes)
    return replace(
        head,
        state=state,
        former=next(iter(formers), head.former),
        changes=tuple(titles),
        weight_bytes=sum(p.weight_bytes for p in parts),
        wheel_bytes=sum(p.wheel_bytes for p in parts),
        peers=tuple({"host": p.host, "deployment": p.deployment} for p in others),
    )


def _resolved(ranks: list[Rank], crew: HostCrew) -> None:
    def seen(rank: Rank) -> None:
        rank.facts = look(rank.shell, rank.deployment, crew.converge)

    _together(ranks, seen)
    group = Group("", tuple(r.host for r in ranks), {r.name: r.deployment for r in ranks})
    seating = seat_group(group, [r.seen() for r in ranks])
    _stopped(ranks, lambda: resolve_group(ranks, seating, crew.converge))


def _together(ranks: list[Rank], work: Callable[[Rank], None]) -> None:
    _stopped(ranks, lambda: each_rank(ranks, work))


def _stopped(ranks: list[Rank], act: Callable[[], Any]) -> None:
    """What the reports of a stopped group say, as one error of rank 0's."""
    try:
        act()
    except GroupStopped:
        bad = next(r for r in ranks if r.report.exit_code and "with its group" not in r.report.error)
        kind = CheckRefused if bad.report.exit_code == CheckRefused.exit_code else ChangeFailed
        raise kind(f"{bad.name}: {bad.report.error}", hint=bad.report.hint, host=ranks[0].name) from None
