"""The switch of a group: all ranks at once, and when one fails, all back.

The ranks' supervisors start no engine before all are there with the same release, and go down together. So
a failed switch undoes itself on the hosts, without the operator; what is left to do here is to take along a
rank that was ready a moment before another one failed.
"""

import threading

from inventory.errors import ChangeFailed, HostUnreachable
from provision import service
from provision.nodes.ranks import Rank
from provision.service import Explain

#: All ranks are ready within seconds of each other, or the one that is not has been lost to us.
PATIENCE_S = 120

__all__ = ["GroupSwitch"]


class GroupSwitch:
    """One switch of ``ranks`` to the release each wants. ``apply`` runs for all of them at the same time."""

    def __init__(self, ranks: list[Rank], explain: Explain) -> None:
        self.ranks, self.explain = ranks, explain
        self.through: set[str] = set()
        self.failed = ""
        self.turn = threading.Condition()

    def apply(self, rank: Rank) -> None:
        """Returns when every rank is ready. Raises RolledBack or ChangeFailed, with its group."""
        release = rank.wanted().release
        current = (rank.seen().value("eyas.current", dict) or {}).get(release.deployment)
        try:
            service.switch(rank.shell, release, current, self.explain, lambda line: self._heard(rank, line))
        except HostUnreachable:
            self._pass(rank)  # the others are ready only if this one is
            raise
        except BaseException:
            self._fail(rank)
            raise
        self._pass(rank)
        if self._others_failed():
            self._back(rank, current)

    def _heard(self, rank: Rank, line: str) -> None:
        if line.startswith(service.FAILED_LINE):
            self._fail(rank)

    def _fail(self, rank: Rank) -> None:
        with self.turn:
            self.failed = self.failed or rank.name
            self.turn.notify_all()

    def _pass(self, rank: Rank) -> None:
        with self.turn:
            self.through.add(rank.name)
            self.turn.notify_all()

    def _others_failed(self) -> bool:
        with self.turn:
            self.turn.wait_for(lambda: self.failed or len(self.through) == len(self.ranks), PATIENCE_S)
            return bool(self.failed)

    def _back(self, rank: Rank, current: str | None) -> None:
        release = rank.wanted().release
        message = f"the group lost {self.failed} in the switch to {release.id}"
        former = current if current != release.id else None
        if current == release.id:
            raise ChangeFailed(message, hint=f"invoke doctor --host {rank.name}", host=rank.name)
        service.put_back(rank.shell, release.deployment, former, release.timeout_start_s, message)
