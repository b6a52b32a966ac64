"""The turn of one host: drained, switched, looked at, and put back when it serves worse than before.

Each step is in the journal before it is made, and each can be made again from its start, so a turn that a
crash or a lost link broke off is gone on with from what the journal says.
"""

from collections.abc import Callable
from typing import Protocol

from inventory.errors import ChangeFailed, EyasError, HostUnreachable, LockHeld
from provision.rollout.ends import Book
from provision.rollout.gate import Verdict
from provision.rollout.plan import Member
from provision.rollout.record import PHASES

__all__ = ["Crew", "Turn"]


class Crew(Protocol):
    """What a rollout asks of the hosts. Each may raise EyasError for its host; all may run side by side."""

    def resolve(self, member: Member) -> Member:
        """Look again at a host that could not be reached when the plan was made."""

    def spread(self, members: list[Member], fleet: list[Member]) -> None:
        """Bring weights and wheels to many hosts at the cost of one; ``prepare`` does what it leaves out."""

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


class Turn:
    """One host's."""

    def __init__(self, member: Member, crew: Crew, book: Book) -> None:
        self.member, self.crew, self.book = member, crew, book

    def take(self) -> None:
        """First what may fail without a trace, then the switch."""
        m = self.member
        try:
            self.crew.ready(m)
        except HostUnreachable as e:
            self.book.untouched(m, e)
        except EyasError as e:
            self.book.failed(m, e)
        else:
            self._guard(self._forward)

    def settle(self, phase: str) -> None:
        """A killed run left the host here."""
        self.book.say(self.member.name, f"was left {phase}: settling it")
        self._guard(self._go_on)

    def _guard(self, act: Callable[[], None]) -> None:
        """A lost host is waited for and tried once more; the journal keeps it in flight if it stays away."""
        m = self.member
        try:
            try:
                act()
            except HostUnreachable as e:
                self.book.say(m.name, f"lost: {e.message}; waiting for it")
                self.crew.back(m)
                self._go_on()
        except (HostUnreachable, LockHeld) as e:
            self.book.lost(m, e)
        except EyasError as e:
            self.book.failed(m, e)

    def _go_on(self) -> None:
        """From where the journal says the host is; what was drained stays so: it may serve nothing now."""
        name = self.member.name
        mine = [e for e in self.book.record.events if e.get("host") == name and e["event"] in PHASES]
        last = mine[-1] if mine else {"event": ""}
        if last["event"] == "rolling-back":
            self._put_back(str(last.get("why", "")))
        elif last["event"] == "switching":
            self._switch()
        else:
            self._forward()

    def _forward(self) -> None:
        """The switch of one host, repeatable from its start."""
        m = self.member
        self.book.record.write("draining", host=m.name)
        try:
            self.crew.drain(m)
        except ChangeFailed as e:
            self.crew.restore(m)
            raise ChangeFailed(f"untouched: {e.message}", hint=e.hint, host=m.name) from e
        self._switch()

    def _switch(self) -> None:
        """From here on only the gate, or the former release, ends it."""
        m = self.member
        self.book.record.write("switching", host=m.name, former=m.former, to=m.want)
        try:
            self.crew.serve(m, m.want)
            verdict = self.crew.gate(m, m.want, m.baseline)
        except LockHeld:
            raise
        except ChangeFailed as e:
            verdict = Verdict(reasons=(e.message,))
        if not verdict.green:
            self._put_back(verdict.text)
            return
        self.crew.restore(m)
        self.book.end(m, "done", proof=_short(verdict), notes=list(verdict.notes))
        result = self.book.ending.results[m.name]
        result.proof, result.notes = verdict.proof, verdict.notes

    def _put_back(self, why: str) -> None:
        """To the former release, proven by the same gate."""
        m = self.member
        self.book.record.write("rolling-back", host=m.name, why=why, to=m.former)
        self.book.say(m.name, f"red: {why}")
        if m.former == m.want:
            self.crew.restore(m)
            self.book.end(m, "kept", why=f"{why}; there is no former release to go back to")
        elif m.former is None:
            self.crew.withdraw(m)
            self.book.end(m, "failed", why=f"{why}; it served nothing before and serves nothing now")
        else:
            self._to_former(m.former, why)

    def _to_former(self, former: str, why: str) -> None:
        m = self.member
        try:
            self.crew.serve(m, former)
            verdict = self.crew.gate(m, former, former)
        except LockHeld:
            raise
        except ChangeFailed as e:
            told = f"{why}; release {former} could not be put back: {e.message}"
            raise ChangeFailed(told, hint=e.hint or "invoke status tells what it serves", host=m.name) from e
        self.crew.restore(m)
        if verdict.green:
            self.book.end(m, "rolled-back", why=why)
        else:
            self.book.end(m, "failed", why=f"{why}; release {former} serves again, but: {verdict.text}")


def _short(verdict: Verdict) -> dict[str, object]:
    return {k: v for k, v in (verdict.proof or {}).items() if k not in {"outputs", "samples"}}
