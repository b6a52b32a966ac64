"""What becomes of each host of a rollout: told to the journal first, then kept for the recap."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from inventory.errors import EyasError
from provision.rollout.plan import Member
from provision.rollout.record import Record

__all__ = ["BAD", "Book", "Ending", "Result"]

#: So many of these, and no other host is touched.
BAD = frozenset({"failed", "rolled-back", "kept", "lost"})


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


class Book:
    """Journal and ending of one run. ``say``: (host, text) for the operator."""

    def __init__(self, record: Record, say: Callable[[str, str], None]) -> None:
        self.record, self.say = record, say
        self.ending = Ending()
        self._mutex = threading.Lock()

    def status(self, m: Member) -> str:
        """Its end so far, or nothing."""
        result = self.ending.results.get(m.name)
        return result.status if result else ""

    def forget(self, m: Member) -> None:
        """It has another turn."""
        self.ending.results.pop(m.name, None)

    def recall(self, m: Member, status: str, why: str = "") -> None:
        """An end that the journal tells already, or that needs no telling."""
        self.ending.results[m.name] = Result(m.name, status, _release(m, status), why)

    def end(self, m: Member, status: str, *, why: str = "", **words: object) -> None:
        self.record.write(status, host=m.name, why=why, **words)
        self.recall(m, status, why)

    def untouched(self, m: Member, e: EyasError) -> None:
        self._error(m, "unreachable", e, e.hint)

    def failed(self, m: Member, e: EyasError) -> None:
        self._error(m, "failed", e, e.hint)

    def lost(self, m: Member, e: EyasError) -> None:
        """In flight and away: it serves the old release or the new one, and only it knows."""
        self._error(m, "lost", e, "invoke rollout --resume settles it when it answers again")

    def _error(self, m: Member, status: str, e: EyasError, hint: str) -> None:
        self.record.write(status, host=m.name, why=e.message)
        self.ending.results[m.name] = Result(m.name, status, why=e.message, hint=hint)
        self.say(m.name, f"{status}: {e.message}")

    def stop(self, max_fail: int) -> bool:
        """True when so many hosts have failed that no other may be touched."""
        bad = sorted(n for n, r in self.ending.results.items() if r.status in BAD)
        if not self.ending.stopped and len(bad) >= max(1, max_fail):
            self.ending.stopped = f"{len(bad)} failed: {', '.join(bad)}"
        return bool(self.ending.stopped)

    def close(self, members: tuple[Member, ...]) -> Ending:
        """Whoever has no end yet was left alone."""
        for m in members:
            if not self.status(m):
                state = "unreachable" if m.state == "unreachable" else "untouched"
                self.ending.results[m.name] = Result(m.name, state, m.former or "", why=m.why)
        order = {m.name: n for n, m in enumerate(members)}
        self.ending.results = dict(sorted(self.ending.results.items(), key=lambda kv: order[kv[0]]))
        self.record.write("end", stopped=self.ending.stopped, exit_code=self.ending.exit_code)
        return self.ending


def _release(m: Member, status: str) -> str:
    return {"done": m.want, "kept": m.want, "ok": m.want, "rolled-back": m.former or ""}.get(status, "")
