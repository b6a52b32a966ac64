"""`invoke rollout` and `invoke rollback`: plan, show, ask, hold the fleet, run the loop, tell."""

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console

from inventory.errors import CheckRefused, EyasError, HostUnreachable, LockHeld, UsageError
from inventory.load import deployment_for
from inventory.model import Deployment, Host
from provision import converge
from provision.explain import explain
from provision.fleet import each_host, room_for
from provision.nodes.roster import Group, groups_of
from provision.preflight import preflight
from provision.report import Progress
from provision.rollout.batches import check_sizes
from provision.rollout.copykey import EVERY, sweep
from provision.rollout.crew import HostCrew
from provision.rollout.ends import Ending
from provision.rollout.fleetlock import fleet_lock
from provision.rollout.former import resolve_rollback
from provision.rollout.groups import GroupCrew, blank_group
from provision.rollout.hooks import check_hook
from provision.rollout.loop import Rollout
from provision.rollout.plan import Member, Options, Plan, host_words
from provision.rollout.record import Record, newest_unfinished
from provision.rollout.resolve import failed_member, one_commit, resolve_member
from provision.rollout.tables import show_plan, show_recap
from provision.run import Flags, connector
from provision.shell import Shell
from provision.want import Sources

__all__ = ["Ask", "resume", "rollback", "rollout"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ask:
    """One command line. ``fleet``: the inventory's path; ``connect``: tests hand in their own."""

    fleet: str
    flags: Flags
    options: Options = field(default_factory=Options)
    yes: bool = False
    connect: Callable[[Host], Any] | None = None


def rollout(hosts: Sequence[Host], deployment: str | None, ask: Ask) -> int:
    """Plan all, agree, run. Exit codes: see inventory/errors.py."""
    wanted = {h.name: deployment_for(h, deployment) for h in hosts}
    alone, groups = groups_of(hosts, wanted)

    def resolve(shell: Shell, m: Member, options: converge.Options, say: Say) -> Member:
        return resolve_member(shell, m.as_deployment(), options, say)

    blanks = [_blank(h, wanted[h.name]) for h in alone]
    blanks += [blank_group(g, "rollout") for g in groups]
    return _Run(ask, resolve).anew("rollout", blanks)


def rollback(hosts: Sequence[Host], deployment: str | None, to: str | None, ask: Ask) -> int:
    """Hosts back to a release they already have; the same loop, nothing to prepare."""
    names = {h.name: deployment or h.vars.get("eyas_deployment") for h in hosts}
    groups = _known_groups(hosts, deployment)
    grouped = {h.name for g in groups for h in g.hosts}
    alone = [h for h in hosts if h.name not in grouped]
    blanks = [Member(host_words(h), {"name": names[h.name]}, "unreachable") for h in alone]
    blanks += [blank_group(g, "rollback") for g in groups]
    return _Run(ask, lambda s, m, _o, _say: resolve_rollback(s, m, to)).anew("rollback", blanks)


def resume(ask: Ask, rollout_id: str) -> int:
    record = newest_unfinished(ask.fleet, rollout=rollout_id)
    if record is None:
        raise UsageError("there is no unfinished rollout of this fleet", hint="invoke audit lists past ones")
    plan = record.plan
    ask = Ask(plan.fleet, ask.flags, plan.options, yes=True, connect=ask.connect)
    if plan.kind == "rollback":
        to = next((m.want for m in plan.members if m.want), None)
        return _Run(ask, lambda s, m, _o, _say: resolve_rollback(s, m, to)).go_on(record)
    return _Run(ask, lambda s, m, o, say: resolve_member(s, m.as_deployment(), o, say)).go_on(record)


def _known_groups(hosts: Sequence[Host], deployment: str | None) -> list[Group]:
    """Groups by the deployments that can be read: a rollback works without their files, host by host."""
    wanted = {}
    for h in hosts:
        with contextlib.suppress(EyasError):
            wanted[h.name] = deployment_for(h, deployment)
    return groups_of([h for h in hosts if h.name in wanted], wanted)[1]


def _blank(host: Host, d: Deployment) -> Member:
    return Member(host_words(host), d.model_dump(mode="json"), "unreachable")


class _Run:
    def __init__(self, ask: Ask, resolve: Callable[[Shell, Member, converge.Options, Say], Member]) -> None:
        self.ask, self.resolve = ask, resolve
        self.converge = converge.Options(
            sources=Sources(shared=True),
            preflight=preflight if ask.flags.preflight else None,
            explain=explain,
        )
        self.mask = self.converge.sources.secrets.mask
        self.progress = Progress(self.mask)
        check_sizes(ask.options.canary, ask.options.serial)
        if ask.options.max_fail < 1:
            raise UsageError("--max-fail 0 would stop before the first host", hint="--max-fail 1")
        check_hook(ask.options.drain, "--drain")
        check_hook(ask.options.restore, "--restore")

    def _crew(self, what: str) -> HostCrew:
        connect = self.ask.connect or connector(self.ask.flags)
        crew = HostCrew(connect, what, self.ask.options, self.converge, self.progress.say)
        crew.resolver = lambda shell, m, say: self.resolve(shell, m, self.converge, say)
        return crew

    def anew(self, kind: str, blanks: list[Member]) -> int:
        left = newest_unfinished(self.ask.fleet)
        if left and left.in_flight and not self.ask.flags.check:
            with fleet_lock(self.ask.fleet, "a look at what was left"):
                pass  # LockHeld: that run isn't over
            raise CheckRefused(
                f"{left.plan.kind} {left.plan.id} left {', '.join(left.in_flight)} between two releases",
                hint="invoke rollout --resume",
            )
        room_for(len(blanks))
        plan_id = Record.new_id()
        with self._crew(f"{kind} {plan_id}") as crew:
            if crew.router:
                crew.router.look()
            members = self._members(crew, blanks)
            if kind == "rollout":
                one_commit(members)
            plan = Plan(plan_id, kind, self.ask.fleet, tuple(members), self.ask.options)
            if self.ask.flags.check:
                return self._checked(plan)
            show_plan(plan, Console(stderr=True, highlight=False, soft_wrap=True), self.mask)
            _refuse(plan)
            if not any(m.state in {"pending", "prepare"} for m in plan.members):
                return self._nothing(plan)
            _agree(self.ask.yes)
            with fleet_lock(self.ask.fleet, f"{kind} {plan_id}"):
                self._take(crew, plan)
                return self._loop(Record.new(plan), crew)

    def go_on(self, record: Record) -> int:
        plan = record.plan
        room_for(len(plan.members))
        with fleet_lock(plan.fleet, f"{plan.kind} {plan.id}"), self._crew(f"{plan.kind} {plan.id}") as crew:
            self._take(crew, plan)
            self._sweep(crew, plan)
            return self._loop(record, crew)

    def _loop(self, record: Record, crew: HostCrew) -> int:
        self.converge.journal.path = record.path
        record.mask = self.mask
        ending = Rollout(record, GroupCrew(crew), self.progress.say).run()
        self._tell(record.plan, ending, str(record.path))
        return ending.exit_code

    def _tell(self, plan: Plan, ending: Ending, journal: str) -> None:
        show_recap(plan, ending, journal, as_json=self.ask.flags.as_json, mask=self.mask)

    def _members(self, crew: HostCrew, blanks: list[Member]) -> list[Member]:
        """The first host alone: what it makes on this machine (wheels, hashes) the others find ready."""
        byname = {m.name: m for m in blanks}

        def one(host: Host) -> Member:
            m = byname[host.name]
            try:
                if m.peers:
                    return GroupCrew(crew).resolve(m)
                return self.resolve(crew.shell(host), m, self.converge, self.progress.for_host(host.name))
            except EyasError as e:
                if not isinstance(e, HostUnreachable | CheckRefused):
                    raise
                known = m.deployment.get("target")
                if known and not m.peers:
                    return failed_member(host, m.as_deployment(), e)
                return replace(m, state=_state(e), why=e.message, hint=e.hint)

        hosts = [m.as_host() for m in blanks]
        return [*map(one, hosts[:1]), *each_host(hosts[1:], one, forks=self.ask.options.forks)]

    def _take(self, crew: HostCrew, plan: Plan) -> None:
        """All locks before anything is touched; the first by name decides between two operators."""
        members = [p for m in plan.members if m.state != "unreachable" for p in m.parts()]

        def one(host: Host) -> EyasError | None:
            try:
                crew.take(host)
            except LockHeld as e:
                return e
            except HostUnreachable:
                return None  # the loop meets it again and says so
            return None

        hosts = sorted((m.as_host() for m in members), key=lambda h: h.name)
        held = [*map(one, hosts[:1])]
        held += [] if held[:1] != [None] else each_host(hosts[1:], one, forks=self.ask.options.forks)
        first = next((e for e in held if e), None)
        if first:
            raise first

    def _sweep(self, crew: HostCrew, plan: Plan) -> None:
        """Keys that a killed run left would hold for minutes yet: nobody else's can be there."""

        def one(host: Host) -> None:
            with contextlib.suppress(EyasError):  # the host takes them away itself
                sweep(crew.shell(host), EVERY)

        parts = [p for m in plan.members if m.state != "unreachable" for p in m.parts()]
        each_host([p.as_host() for p in parts], one, forks=self.ask.options.forks)

    def _checked(self, plan: Plan) -> int:
        if self.ask.flags.as_json:
            words = {"schema": 1, "task": plan.kind, "check": True, "plan": plan.to_json()}
            print(self.mask(json.dumps(words)))
        else:
            show_plan(plan, Console(highlight=False, soft_wrap=True), self.mask)
        states = {m.state for m in plan.members}
        if "refused" in states:
            return 4
        if "unreachable" in states:
            return 3
        return 8 if self.ask.flags.detailed_exitcode and states & {"pending", "prepare"} else 0

    def _nothing(self, plan: Plan) -> int:
        away = [asdict(m) for m in plan.members if m.state == "unreachable"]
        if self.ask.flags.as_json:
            hosts = [{"host": m.name, "status": "ok" if m.state == "same" else m.state} for m in plan.members]
            print(json.dumps({"schema": 1, "task": plan.kind, "hosts": hosts, "exit_code": 3 if away else 0}))
        return 3 if away else 0


def _state(e: EyasError) -> str:
    return "unreachable" if isinstance(e, HostUnreachable) else "refused"


def _refuse(plan: Plan) -> None:
    bad = [m for m in plan.members if m.state == "refused"]
    if bad:
        others = ",".join(f"!{m.name}" for m in bad)
        raise CheckRefused(
            "; ".join(f"{m.name}: {m.why}" for m in bad),
            hint=f"{bad[0].hint}   or leave it out: --limit '...,{others}'" if bad[0].hint else others,
        )


def _agree(yes: bool) -> None:
    """A yes on the terminal, or --yes; anything else is no."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("nobody said yes", hint="add --yes, or run it from a terminal")
    sys.stderr.write("go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("not agreed; nothing was touched")
