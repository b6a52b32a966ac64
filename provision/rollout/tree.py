"""A copy from host to host: each that has it gives it to a few others, so a fleet costs log(n) rounds.

Knows nothing of SSH or files: `Tree` says who copies from whom, ``spread`` lets a function do it.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from enum import Enum

__all__ = ["Copied", "Tree", "spread"]


class Copied(Enum):
    OK = "ok"
    #: The source gave nothing: it is left out from now on.
    SOURCE = "source failed"
    #: What arrived was wrong and has been removed: fetched again, from another source if there is one.
    CORRUPT = "corrupt"
    #: The target itself can't take it.
    TARGET = "target failed"


class Tree:
    """Who copies from whom next. At most ``fanout`` copies leave one source at a time.

    ``have``: hosts with a good copy; ``waiting``: those without; ``failed``: given up; ``busy``: copies now.
    A pair costs O(log n), so that ten thousand hosts are planned in less than a second.
    """

    def __init__(
        self, sources: Iterable[str], targets: Iterable[str], *, fanout: int = 2, attempts: int = 3
    ) -> None:
        self.fanout, self.attempts = max(1, fanout), attempts
        self.have: dict[str, int] = {}
        self.failed: set[str] = set()
        self.busy: set[tuple[str, str]] = set()
        self._dead: set[str] = set()
        self._load: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()
        self._avoid: dict[str, set[str]] = {}
        self._free: list[tuple[int, int, str]] = []
        for source in sources:
            self._add(source)
        self.waiting = dict.fromkeys(t for t in targets if t not in self.have)

    def next(self) -> tuple[str, str] | None:
        """(source, target) to start now, the least busy source first; None: wait for one that runs."""
        while self._free and not self._current(self._free[0]):
            heapq.heappop(self._free)
        if not self._free:
            return None
        for target in self.waiting:
            if source := self._source_for(target):
                del self.waiting[target]
                self.busy.add((source, target))
                self._load[source] += 1
                self._offer(source)
                return source, target
        return None

    def ended(self, source: str, target: str, result: Copied) -> None:
        """What came of a pair that ``next`` gave."""
        self.busy.remove((source, target))
        self._load[source] -= 1
        if result is Copied.SOURCE:
            self._dead.add(source)
        self._offer(source)
        if result is Copied.OK:
            self._add(target)
            return
        self._avoid.setdefault(target, set()).add(source)
        self._tries[target] += result is not Copied.SOURCE
        if result is Copied.TARGET or self._tries[target] >= self.attempts:
            self.failed.add(target)
        else:
            self.waiting[target] = None

    def _add(self, host: str) -> None:
        if host not in self.have:
            self.have[host] = len(self.have)
            self._offer(host)

    def _offer(self, source: str) -> None:
        if source not in self._dead and self._load[source] < self.fanout:
            heapq.heappush(self._free, (self._load[source], self.have[source], source))

    def _current(self, entry: tuple[int, int, str]) -> bool:
        return entry[2] not in self._dead and self._load[entry[2]] == entry[0]

    def _source_for(self, target: str) -> str:
        """The first that didn't just fail with it; when nothing runs, even one that did."""
        avoid = self._avoid.get(target)
        if not avoid:
            return self._free[0][2]
        free = [e[2] for e in sorted(self._free) if self._current(e)]
        good = [s for s in free if s not in avoid]
        return next(iter(good or ([] if self.busy else free)), "")


def spread(
    sources: Iterable[str],
    targets: Iterable[str],
    copy: Callable[[str, str], Copied],
    *,
    fanout: int = 2,
    forks: int = 20,
    attempts: int = 3,
) -> tuple[set[str], set[str]]:
    """(hosts that have it now, hosts that don't). At most ``forks`` copies run at once."""
    tree = Tree(sources, targets, fanout=fanout, attempts=attempts)
    running: dict[Future[Copied], tuple[str, str]] = {}
    with ThreadPoolExecutor(max_workers=max(1, forks)) as pool:
        while tree.waiting or running:
            pair = tree.next() if len(running) < max(1, forks) else None
            if pair:
                running[pool.submit(copy, *pair)] = pair
                continue
            if not running:
                break  # nobody is left to copy from
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                tree.ended(*running.pop(future), future.result())
    return set(tree.have), tree.failed | set(tree.waiting)
