"""Several hosts side by side: a bounded pool, one connection and one result a host, no exceptions."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from inventory.defaults import FORKS
from inventory.model import Host

__all__ = ["FORKS", "each_host"]

T = TypeVar("T")


def each_host(hosts: Iterable[Host], work: Callable[[Host], T], *, forks: int = FORKS) -> list[T]:
    """``work`` on each host, at most ``forks`` at once; results in the order of ``hosts``.

    ``work`` turns what goes wrong on its host into a result; what it raises is a bug and stops the run.
    """
    hosts = list(hosts)
    if len(hosts) == 1:
        return [work(hosts[0])]
    with ThreadPoolExecutor(max_workers=max(1, min(forks, len(hosts)))) as pool:
        return list(pool.map(work, hosts))
