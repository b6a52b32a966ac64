"""The switch of a group: all ranks at once, and when one fails, all back.

The ranks' supervisors start no engine before all are there with the same release, and go down together. So
a failed switch undoes itself on the hosts, without the operator; what is left to do here is to take along a
rank that was ready a moment before another one failed, and to end the others' wait for a host that is gone.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from inventory.errors import ChangeFailed, EyasError, HostUnreachable, RolledBack
from provision import layout, service
from provision.service import OnLine
from provision.shell import Shell

__all__ = ["GroupSwitch", "Links", "Over", "settle_together", "side_by_side"]

#: All ranks are ready within seconds of each other, or the one that is not has been lost to us.
PATIENCE_S = 120
#: A host is asked every few seconds whether it is there; two questions without an answer are the end.
ASK_S, ANSWER_S, SILENCES = 4.0, 10.0, 2
#: How long a host whose connection broke may take to accept another one.
BACK_S = 15.0
#: Hosts begin and end a switch within moments of each other; who is alone with it for so long stays so.
ALONE_S = 5.0
#: Only of a unit that is not through: one that serves is left alone.
_HALT = '[ "$(systemctl is-active "$1")" != activating ] || systemctl kill --signal=KILL "$1"'


class Links(Protocol):
    """What a switch knows of its hosts, and can do to them, while it goes on."""

    def answers(self, name: str) -> bool:
        """Whether the host answers on the connection that its switch runs on."""

    def gone(self, name: str) -> bool:
        """Of a host whose connection broke: whether it accepts no other one either."""

    def let_go(self, name: str) -> None:
        """Close the connection of a host that does not answer."""

    def halt(self, name: str) -> None:
        """End a start that waits for a host that is gone; this host puts its former release back then."""


class Over:
    """Links over the shells of the hosts; ``shell``: name -> the open one. Unit: the deployment's."""

    def __init__(self, shell: Callable[[str], Shell], deployment: str) -> None:
        self.shell, self.unit = shell, f"{layout.unit_name(deployment)}.service"

    def answers(self, name: str) -> bool:
        try:
            return self.shell(name).answers(within=ANSWER_S)
        except HostUnreachable:
            return False

    def gone(self, name: str) -> bool:
        try:
            self.shell(name).reconnect(deadline=BACK_S)
        except HostUnreachable:
            return True
        return False

    def let_go(self, name: str) -> None:
        with contextlib.suppress(HostUnreachable):
            self.shell(name).close()

    def halt(self, name: str) -> None:
        with contextlib.suppress(EyasError):
            self.shell(name).run(("sh", "-c", _HALT, "sh", self.unit), timeout=30, check=False)


class GroupSwitch:
    """One switch of the hosts ``names``; each calls ``apply``, all at once. ``say``: (host, text)."""

    def __init__(
        self, names: list[str], links: Links | None = None, say: Callable[[str, str], None] | None = None
    ) -> None:
        self.names, self.links = names, links
        self.say = say or (lambda _name, _text: None)
        self.through: set[str] = set()
        self.silent: set[str] = set()
        self.halted: set[str] = set()
        self.failed = self.lost = ""
        self.turn = threading.Condition()

    def apply(self, name: str, activate: Callable[[OnLine], None], back: Callable[[str], None]) -> None:
        """``activate`` this host; when another one fails meanwhile, ``back`` with the sentence that says so.

        ``activate`` raises once its host has put the former release back, and tells its lines as they come.
        """
        over = threading.Event()
        threading.Thread(target=self._ask, args=(name, over), daemon=True).start()
        try:
            activate(lambda line: self._heard(name, line))
        except HostUnreachable as e:
            raise self._unreachable(name, e) from e
        except EyasError as e:
            self._fail(name)
            raise self._because(name, e) from e
        except BaseException:
            self._fail(name)
            raise
        finally:
            over.set()
        self._pass(name)
        if self._others_failed():
            back(f"the group lost {self.failed} in the switch")

    # ---- a host that is gone

    def _ask(self, name: str, over: threading.Event) -> None:
        """While its switch goes on: does the host still answer? Otherwise nobody waits for it any longer."""
        unanswered = 0
        while self.links and not over.wait(ASK_S):
            unanswered = 0 if self.links.answers(name) else unanswered + 1
            if unanswered == SILENCES:
                self.silent.add(name)
                self.links.let_go(name)
                return

    def _unreachable(self, name: str, e: HostUnreachable) -> HostUnreachable:
        """One that only lost its connection goes on by itself, and the others with it."""
        if self.links is None or not (name in self.silent or self.links.gone(name)):
            self._pass(name)  # the others are ready only if this one is
            return e
        with self.turn:
            self.lost = self.lost or name
            waiting = [n for n in self.names if n not in {*self.through, *self.silent, self.failed, name}]
            self.halted.update(waiting)
            self.turn.notify_all()
        self.say(name, "gone in the middle of the switch")
        for other in waiting:
            self.say(other, f"{name} is gone: not waiting for it, putting the former release back")
            self.links.halt(other)
        return HostUnreachable(
            f"gone in the middle of the switch: {e.message}",
            hint="when it is back, run the same command again: it may have either release",
            host=name,
        )

    def _because(self, name: str, e: EyasError) -> EyasError:
        """What a rank says that was halted is no cause: what became of it counts."""
        if not self.lost or self.lost == name:
            return e
        told = e.message
        if name in self.halted:
            told = told.splitlines()[-1] if isinstance(e, RolledBack) else "there is no former release"
        kind = RolledBack if isinstance(e, RolledBack) else ChangeFailed
        return kind(
            f"the group lost {self.lost} in the switch: {told}",
            hint=e.hint,
            host=e.host,
            findings=() if name in self.halted else e.findings,
        )

    # ---- who is where

    def _heard(self, name: str, line: str) -> None:
        if line.startswith(service.FAILED_LINE):
            self._fail(name)

    def _fail(self, name: str) -> None:
        with self.turn:
            self.failed = self.failed or name
            self.turn.notify_all()

    def _pass(self, name: str) -> None:
        with self.turn:
            self.through.add(name)
            self.turn.notify_all()

    def _others_failed(self) -> bool:
        with self.turn:
            self.turn.wait_for(self._told, PATIENCE_S)
            return bool(self.failed)

    def _told(self) -> bool:
        return bool(self.failed or self.lost) or len(self.through) == len(self.names)


def settle_together(over: Over, names: list[str], say: Callable[[str, str], None]) -> None:
    """Wait for what a killed operator left going on; a host that switches alone is sent back at once."""
    end = time.monotonic() + ALONE_S
    while busy := [n for n in names if service.switching(over.shell(n))]:
        if len(busy) == len(names):
            break
        if time.monotonic() > end:
            for name in busy:
                say(name, "was left switching alone: sending it back")
                over.halt(name)
            break
        time.sleep(0.5)
    for name in busy:
        service.settle(over.shell(name), partial(say, name))


def side_by_side(works: dict[str, Callable[[], None]]) -> dict[str, EyasError]:
    """All at once; who failed, and how."""

    def one(work: Callable[[], None]) -> EyasError | None:
        try:
            work()
        except EyasError as e:
            return e
        return None

    with ThreadPoolExecutor(max_workers=max(1, len(works))) as pool:
        return {name: e for name, e in zip(works, pool.map(one, works.values()), strict=True) if e}
