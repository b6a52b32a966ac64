"""The rollout itself: a plain loop over batches. What it knows is in the journal; what it does is the crew's.

A host ends as done, rolled-back, kept (it serves the new release, though its gate is red and there is no
former one), failed, unreachable or untouched. Between "switching" and one of the first three it may serve
either release, and whoever comes next settles it before anything else.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Protocol

from inventory.errors import ChangeFailed, EyasError, HostUnreachable, LockHeld
from provision.fleet import each_host
from provision.rollout.batches import batches
from provision.rollout.gate import Verdict
from provision.rollout.plan import Member, Plan
from provision.rollout.record import IN_FLIGHT, PHASES, Record

__all__ = ["Crew", "Ending", "Result", "Rollout"]


class Crew(Protocol):
    """What the loop asks of the hosts. Each may raise EyasError for its host; all may run side by side."""

    def resolve(self, member: Member) -> Member:
        """Look again at a host that could not be reached when the plan was made."""

    def spread(self, members: list[Member], fleet: list[Member]) -> None:
        """Bring weights to many hosts at the cost of one; ``prepare`` does what it leaves out."""

    def prepare(self, member: Member) -> None:
        """Everything slow and harmless; what serves is untouched."""

    def ready(self, member: Member) -> None:
        """Raise unless the switch may begin: lock held, release there, nobody changed what is served."""

    def drain(self, member: Member) -> None: ...
    def restore(self, member: Member) -> None: ...

    def serve(self, member: Member, release: str) -> None:
        """Make it the served one and wait until it answers. ChangeFailed when it doesn't."""

    def gate(self, member: Member, release: str, baseline: str | None) -> Verdict: ...

    def withdraw(self, member: Member) -> None:
        """Serve nothing: for a host that served nothing before."""

    def back(self, member: Member) -> None:
        """Wait for a host that was lost; HostUnreachable when it doesn't come back in time."""


@dataclass
class Result:
    """What became of one host."""

    host: str
    status: str
    release: str = ""
    why: str = ""
    hint: str = ""
    seconds: float = 0.0
    proof: dict[str, object] | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Ending:
    results: dict[str, Result] = field(default_factory=dict)
    stopped: str = ""

    @property
    def exit_code(self) -> int:
        found = {r.status for r in self.results.values()}
        if found & {"failed", "kept", "lost"}:
            return 5
        if "rolled-back" in found:
            return 6
        return 3 if "unreachable" in found else 0


class Rollout:
    """Run, or go on with, one plan. ``clock`` and ``sleep`` are parameters for tests."""

    def __init__(
        self,
        record: Record,
        crew: Crew,
        say: Callable[[str, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.record, self.crew, self.say = record, crew, say
        self.clock, self.sleep = clock, sleep
        self.plan: Plan = record.plan
        self.options = self.plan.options
        self.ending = Ending()

    def run(self) -> Ending:
        """To the end, or to the first stop. What the journal already tells is not done again."""
        self.record.write("begin" if not self.record.phases else "resume")
        self._recall()
        self._settle()
        if not self._stop():
            self._prepare(self._waiting())
        if not self._stop():
            self._switch(self._waiting())
        if not self._stop():
            self._latecomers()
        self._close()
        return self.ending

    # ---- where each host is

    def _member(self, name: str) -> Member:
        return next(m for m in self.plan.members if m.name == name)

    def _recall(self) -> None:
        """Results of hosts the journal has an end for, and of those the plan has nothing to do on."""
        phases = self.record.phases
        for m in self.plan.members:
            phase = phases.get(m.name)
            if phase in {"done", "rolled-back", "failed", "kept"}:
                last = next(e for e in reversed(self.record.events) if e.get("host") == m.name)
                self._end(m, phase, why=last.get("why", ""), told=True)
            elif m.state == "same":
                self._end(m, "ok", told=True)

    def _waiting(self) -> list[Member]:
        """Hosts with something left to do, in the order of the plan; those never reached come last."""
        return [
            m
            for m in self.plan.members
            if m.name not in self.ending.results and m.state in {"pending", "prepare"}
        ]

    def _end(self, m: Member, status: str, *, why: str = "", told: bool = False, **words: object) -> None:
        if not told:
            self.record.write(status, host=m.name, why=why, **words)
        release = {"done": m.want, "kept": m.want, "rolled-back": m.former or "", "ok": m.want}.get(
            status, ""
        )
        result = self.ending.results.setdefault(m.name, Result(m.name, status))
        result.status, result.release, result.why = status, release, why

    def _stop(self) -> bool:
        """True when so many hosts have failed that no other may be touched."""
        if self.ending.stopped:
            return True
        bad = [
            n for n, r in self.ending.results.items() if r.status in {"failed", "rolled-back", "kept", "lost"}
        ]
        if len(bad) >= max(1, self.options.max_fail):
            self.ending.stopped = f"{len(bad)} failed: {', '.join(sorted(bad))}"
        return bool(self.ending.stopped)

    def _each(self, members: Iterable[Member], work: Callable[[Member], None]) -> None:
        byname = {m.name: m for m in members}
        each_host(
            [m.as_host() for m in byname.values()], lambda h: work(byname[h.name]), forks=self.options.forks
        )

    # ---- the four parts

    def _settle(self) -> None:
        """Hosts that a killed run left between two releases, before any other is touched."""
        phases = self.record.phases
        left = [m for m in self.plan.members if phases.get(m.name) in IN_FLIGHT]
        self._each(left, lambda m: self._settle_one(m, phases[m.name]))

    def _settle_one(self, m: Member, phase: str) -> None:
        self.say(m.name, f"was left {phase}: settling it")
        self._guard(m, lambda: self._go_on(m))

    def _go_on(self, m: Member) -> None:
        """From where the journal says the host is; what was drained stays so: it may serve nothing now."""
        mine = [e for e in self.record.events if e.get("host") == m.name and e["event"] in PHASES]
        last = mine[-1] if mine else {"event": ""}
        if last["event"] == "rolling-back":
            self._put_back(m, str(last.get("why", "")))
        elif last["event"] == "switching":
            self._switch_to(m)
        else:
            self._forward(m)

    def _prepare(self, members: list[Member]) -> None:
        if len(members) > 1:
            self.crew.spread(members, list(self.plan.members))
        self._each(members, self._prepare_one)
        for m in members:
            if m.state == "prepare" and m.name not in self.ending.results:
                self._end(m, "done")

    def _prepare_one(self, m: Member) -> None:
        try:
            self.crew.prepare(m)
            self.record.write("prepared", host=m.name)
        except HostUnreachable as e:
            self._untouched(m, e)
        except EyasError as e:
            self._failed(m, e)

    def _switch(self, members: list[Member]) -> None:
        members = [m for m in members if m.moves]
        made = batches(members, self.options.canary, self.options.serial)
        for number, batch in enumerate(made, 1):
            if number > 1 and self.options.pause_s:
                self.sleep(self.options.pause_s)
            names = ", ".join(m.name for m in batch)
            self.record.write("batch", number=number, of=len(made), hosts=[m.name for m in batch])
            self.say("", f"batch {number} of {len(made)}: {names}")
            self._each(batch, self._switch_one)
            if self._stop():
                return

    def _switch_one(self, m: Member) -> None:
        """First what may fail without a trace, then the switch."""
        began = self.clock()
        try:
            self.crew.ready(m)
        except HostUnreachable as e:
            self._untouched(m, e)
            return
        except EyasError as e:
            self._failed(m, e)
            return
        self._guard(m, lambda: self._forward(m))
        self.ending.results[m.name].seconds = round(self.clock() - began, 1)

    def _guard(self, m: Member, act: Callable[[], None]) -> None:
        """A lost host is waited for and tried once more; the journal keeps it in flight if it stays away."""
        try:
            try:
                act()
            except HostUnreachable as e:
                self.say(m.name, f"lost: {e.message}; waiting for it")
                self.crew.back(m)
                self._go_on(m)
        except (HostUnreachable, LockHeld) as e:
            self._lost(m, e)
        except EyasError as e:
            self._failed(m, e)

    def _forward(self, m: Member) -> None:
        """The switch of one host, repeatable from its start."""
        self.record.write("draining", host=m.name)
        try:
            self.crew.drain(m)
        except ChangeFailed as e:
            self.crew.restore(m)
            raise ChangeFailed(f"untouched: {e.message}", hint=e.hint, host=m.name) from e
        self._switch_to(m)

    def _switch_to(self, m: Member) -> None:
        """From here on only the gate, or the former release, ends it."""
        self.record.write("switching", host=m.name, former=m.former, to=m.want)
        try:
            self.crew.serve(m, m.want)
            verdict = self.crew.gate(m, m.want, m.baseline)
        except LockHeld:
            raise
        except ChangeFailed as e:
            verdict = Verdict(reasons=(e.message,))
        if not verdict.green:
            self._put_back(m, verdict.text)
            return
        self.crew.restore(m)
        self._end(m, "done", proof=_short(verdict), notes=list(verdict.notes))
        result = self.ending.results[m.name]
        result.proof, result.notes = verdict.proof, verdict.notes

    def _put_back(self, m: Member, why: str) -> None:
        """To the former release, proven by the same gate."""
        self.record.write("rolling-back", host=m.name, why=why, to=m.former)
        self.say(m.name, f"red: {why}")
        if m.former == m.want:
            self.crew.restore(m)
            self._end(m, "kept", why=f"{why}; there is no former release to go back to")
            return
        if m.former is None:
            self.crew.withdraw(m)
            self._end(m, "failed", why=f"{why}; it served nothing before and serves nothing now")
            return
        self.crew.serve(m, m.former)
        verdict = self.crew.gate(m, m.former, m.former)
        self.crew.restore(m)
        if verdict.green:
            self._end(m, "rolled-back", why=why)
        else:
            self._end(m, "failed", why=f"{why}; release {m.former} serves again, but: {verdict.text}")

    def _latecomers(self) -> None:
        """Hosts that could not be reached get a last chance; nobody who wasn't reached counts as done."""
        away = [
            m
            for m in self.plan.members
            if self._status(m) == "unreachable" or (m.state == "unreachable" and not self._status(m))
        ]
        if not away:
            return
        self.say("", f"trying again: {', '.join(m.name for m in away)}")
        self._each(away, self._resolve_one)
        back = [m for m in self.plan.members if m.name in {a.name for a in away} and not self._status(m)]
        self._prepare(back)
        if not self._stop():
            self._switch([m for m in back if not self._status(m)])

    def _resolve_one(self, m: Member) -> None:
        self.ending.results.pop(m.name, None)
        try:
            found = self.crew.resolve(m) if m.state == "unreachable" else m
        except HostUnreachable as e:
            self._untouched(m, e)
            return
        except EyasError as e:
            self._failed(m, e)
            return
        if found is not m:
            self.record.write("resolved", host=m.name, member=asdict(found))
            self.plan = self.plan.with_members({m.name: found})
        if found.state == "same":
            self._end(found, "ok", told=True)
        elif found.state == "refused":
            self._failed(m, ChangeFailed(found.why, hint=found.hint, host=m.name))

    def _status(self, m: Member) -> str:
        result = self.ending.results.get(m.name)
        return result.status if result else ""

    # ---- ends

    def _untouched(self, m: Member, e: EyasError) -> None:
        self.record.write("unreachable", host=m.name, why=e.message)
        self._set(m, "unreachable", e)

    def _lost(self, m: Member, e: EyasError) -> None:
        """In flight and away: it serves the old release or the new one, and only it knows."""
        self.record.write("lost", host=m.name, why=e.message)
        self._set(m, "lost", e)
        self.ending.results[m.name].hint = "invoke rollout --resume settles it when it answers again"

    def _failed(self, m: Member, e: EyasError) -> None:
        self.record.write("failed", host=m.name, why=e.message)
        self._set(m, "failed", e)

    def _set(self, m: Member, status: str, e: EyasError) -> None:
        self.ending.results[m.name] = Result(m.name, status, why=e.message, hint=e.hint)
        self.say(m.name, f"{status}: {e.message}")

    def _close(self) -> None:
        for m in self.plan.members:
            if m.name not in self.ending.results:
                state = "unreachable" if m.state == "unreachable" else "untouched"
                self.ending.results[m.name] = Result(m.name, state, m.former or "", why=m.why)
        order = {m.name: n for n, m in enumerate(self.plan.members)}
        self.ending.results = dict(sorted(self.ending.results.items(), key=lambda kv: order[kv[0]]))
        self.record.write("end", stopped=self.ending.stopped, exit_code=self.ending.exit_code)


def _short(verdict: Verdict) -> dict[str, object]:
    return {k: v for k, v in (verdict.proof or {}).items() if k not in {"outputs", "samples"}}
