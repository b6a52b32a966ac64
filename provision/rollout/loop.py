"""The rollout itself: a plain loop over batches. What it knows is in the journal; what it does is the crew's.

A host ends as done, rolled-back, kept (it serves the new release, though its gate is red and there is no
former one), failed, unreachable or untouched. Between "switching" and one of the first three it may serve
either release, and whoever comes next settles it before anything else.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict

from inventory.errors import ChangeFailed, EyasError, HostUnreachable
from provision.fleet import each_host
from provision.rollout.batches import batches
from provision.rollout.ends import Book, Ending
from provision.rollout.plan import Member, Plan
from provision.rollout.record import IN_FLIGHT, Record
from provision.rollout.turn import Crew, Turn

__all__ = ["Rollout"]


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
        self.book = Book(record, say)
        self._mutex = threading.Lock()

    def run(self) -> Ending:
        """To the end, or to the first stop. What the journal already tells is not done again."""
        self.record.write("begin" if not self.record.phases else "resume")
        self._recall()
        self._settle()
        for part in (self._prepare_all, self._switch_all, self._latecomers):
            if not self._stop():
                part()
        return self.book.close(self.plan.members)

    # ---- where each host is

    def _recall(self) -> None:
        """Results of hosts the journal has an end for, and of those the plan has nothing to do on."""
        phases = self.record.phases
        last = {e["host"]: e for e in self.record.events if "host" in e}
        for m in self.plan.members:
            phase = phases.get(m.name)
            if phase in {"done", "rolled-back", "failed", "kept"}:
                self.book.recall(m, phase, str(last[m.name].get("why", "")))
            elif m.state == "same":
                self.book.recall(m, "ok")

    def _waiting(self) -> list[Member]:
        """Hosts with something left to do, in the order of the plan; those never reached come last."""
        todo = {"pending", "prepare"}
        return [m for m in self.plan.members if not self.book.status(m) and m.state in todo]

    def _stop(self) -> bool:
        return self.book.stop(self.options.max_fail)

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
        self._each(left, lambda m: Turn(m, self.crew, self.book).settle(phases[m.name]))

    def _prepare_all(self) -> None:
        self._prepare(self._waiting())

    def _prepare(self, members: list[Member]) -> None:
        if len(self.plan.members) > 1:
            self.crew.spread(members, list(self.plan.members))
        self._each(members, self._prepare_one)
        for m in members:
            if m.state == "prepare" and not self.book.status(m):
                self.book.end(m, "done")

    def _prepare_one(self, m: Member) -> None:
        try:
            self.crew.prepare(m)
            self.record.write("prepared", host=m.name)
        except HostUnreachable as e:
            self.book.untouched(m, e)
        except EyasError as e:
            self.book.failed(m, e)

    def _switch_all(self) -> None:
        self._switch(self._waiting())

    def _switch(self, members: list[Member]) -> None:
        made = batches([m for m in members if m.moves], self.options.canary, self.options.serial)
        for number, batch in enumerate(made, 1):
            if number > 1 and self.options.pause_s:
                self.sleep(self.options.pause_s)
            self.record.write("batch", number=number, of=len(made), hosts=[m.name for m in batch])
            self.say("", f"batch {number} of {len(made)}: {', '.join(m.name for m in batch)}")
            self._each(batch, self._switch_one)
            if self._stop():
                return

    def _switch_one(self, m: Member) -> None:
        began = self.clock()
        Turn(m, self.crew, self.book).take()
        self.book.ending.results[m.name].seconds = round(self.clock() - began, 1)

    def _latecomers(self) -> None:
        """Hosts that could not be reached get a last chance; nobody who wasn't reached counts as done."""
        away = {m.name for m in self.plan.members if self._away(m)}
        if not away:
            return
        self.say("", f"trying again: {', '.join(sorted(away))}")
        self._each((m for m in self.plan.members if m.name in away), self._resolve_one)
        back = [m for m in self.plan.members if m.name in away and not self.book.status(m)]
        self._prepare(back)
        if not self._stop():
            self._switch([m for m in back if not self.book.status(m)])

    def _away(self, m: Member) -> bool:
        status = self.book.status(m)
        return status == "unreachable" or (m.state == "unreachable" and not status)

    def _resolve_one(self, m: Member) -> None:
        self.book.forget(m)
        try:
            found = self.crew.resolve(m) if m.state == "unreachable" else m
        except HostUnreachable as e:
            self.book.untouched(m, e)
            return
        except EyasError as e:
            self.book.failed(m, e)
            return
        if found is not m:
            self.record.write("resolved", host=m.name, member=asdict(found))
            with self._mutex:
                self.plan = self.plan.with_members({m.name: found})
        if found.state == "same":
            self.book.recall(found, "ok")
        elif found.state == "refused":
            self.book.failed(m, ChangeFailed(found.why, hint=found.hint, host=m.name))
