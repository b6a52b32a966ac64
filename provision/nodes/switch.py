"""The switch of a group: all ranks at once, and when one fails, all back.

The ranks' supervisors start no engine before all are there with the same release, and go down together. So
a failed switch undoes itself on the hosts, without the operator; what is left to do here is to take along a
rank that was ready a moment before another one failed.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from inventory.errors import EyasError, HostUnreachable
from provision import service
from provision.service import OnLine

__all__ = ["GroupSwitch", "side_by_side"]

#: All ranks are ready within seconds of each other, or the one that is not has been lost to us.
PATIENCE_S = 120


class GroupSwitch:
    """One switch of the hosts ``names``; each calls ``apply``, all at the same time."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.through: set[str] = set()
        self.failed = ""
        self.turn = threading.Condition()

    def apply(self, name: str, activate: Callable[[OnLine], None], back: Callable[[str], None]) -> None:
        """``activate`` this host; when another one fails meanwhile, ``back`` with the sentence that says so.

        ``activate`` raises once its host has put the former release back, and tells its lines as they come.
        """
        try:
            activate(lambda line: self._heard(name, line))
        except HostUnreachable:
            self._pass(name)  # the others are ready only if this one is
            raise
        except BaseException:
            self._fail(name)
            raise
        self._pass(name)
        if self._others_failed():
            back(f"the group lost {self.failed} in the switch")

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
            self.turn.wait_for(lambda: self.failed or len(self.through) == len(self.names), PATIENCE_S)
            return bool(self.failed)


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
