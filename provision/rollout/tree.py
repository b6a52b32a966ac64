"""A copy from host to host: each that has it gives it to a few others, so a fleet costs log(n) rounds.

Knows nothing of SSH or files: ``copy(source, target)`` does the work and says what came of it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from enum import Enum

__all__ = ["Copied", "spread"]


class Copied(Enum):
    OK = "ok"
    #: The source gave nothing: it is left out from now on.
    SOURCE = "source failed"
    #: What arrived was wrong and has been removed: fetched again, from another source if there is one.
    CORRUPT = "corrupt"
    #: The target can't take it now; it has another turn when the others had theirs.
    TARGET = "target failed"


def spread(
    sources: Iterable[str],
    targets: Iterable[str],
    copy: Callable[[str, str], Copied],
    *,
    fanout: int = 2,
    forks: int = 20,
    attempts: int = 3,
) -> tuple[set[str], set[str]]:
    """(hosts that have it now, hosts that don't). At most ``fanout`` copies leave one source at a time."""
    have, waiting = list(dict.fromkeys(sources)), list(dict.fromkeys(targets))
    waiting = [t for t in waiting if t not in have]
    dead: set[str] = set()
    failed: set[str] = set()
    tries: Counter[str] = Counter()
    avoid: dict[str, set[str]] = {t: set() for t in waiting}
    busy: dict[Future[Copied], tuple[str, str]] = {}

    def next_pair() -> tuple[str, str] | None:
        """The least busy source with room, for the first target that didn't just fail with it."""
        load = Counter(s for s, _ in busy.values())
        free = sorted((s for s in have if s not in dead and load[s] < fanout), key=lambda s: load[s])
        for target in waiting:
            good = [s for s in free if s not in avoid[target]] or (free if not busy else [])
            if good:
                return good[0], target
        return None

    with ThreadPoolExecutor(max_workers=max(1, forks)) as pool:
        while waiting or busy:
            pair = next_pair() if len(busy) < forks else None
            if pair:
                waiting.remove(pair[1])
                busy[pool.submit(copy, *pair)] = pair
                continue
            if not busy:
                break  # nobody is left to copy from
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                source, target = busy.pop(future)
                result = future.result()
                if result is Copied.OK:
                    have.append(target)
                    continue
                if result is Copied.SOURCE:
                    dead.add(source)
                if result is not Copied.TARGET:
                    avoid[target].add(source)
                tries[target] += result is not Copied.SOURCE
                (failed.add if tries[target] >= attempts else waiting.append)(target)
    return set(have), failed | set(waiting)
