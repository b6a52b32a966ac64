"""Several hosts side by side: a bounded pool, one connection and one result a host, no exceptions."""

import resource
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from inventory.defaults import FORKS
from inventory.errors import UsageError
from inventory.model import Host

__all__ = ["FORKS", "each_host", "room_for"]

#: More threads than this gain nothing and starve the connections they should serve.
MOST_FORKS = 500
#: Open files of this process beside its connections: journal, lock, terminal, a child's pipes.
_OWN_FILES = 128

T = TypeVar("T")


def each_host(hosts: Iterable[Host], work: Callable[[Host], T], *, forks: int = FORKS) -> list[T]:
    """``work`` on each host, at most ``forks`` at once; results in the order of ``hosts``.

    ``work`` turns what goes wrong on its host into a result; what it raises is a bug and stops the run.
    """
    if not 1 <= forks <= MOST_FORKS:
        raise UsageError(f"--forks {forks} is not between 1 and {MOST_FORKS}", hint=f"--forks {FORKS}")
    hosts = list(hosts)
    if len(hosts) == 1:
        return [work(hosts[0])]
    with ThreadPoolExecutor(max_workers=max(1, min(forks, len(hosts)))) as pool:
        return list(pool.map(work, hosts))


def room_for(connections: int) -> None:
    """Make sure that so many connections can be open at once; each is one open file.

    Raises this process's own limit as far as it may. UsageError when that is not far enough: better now than
    in the middle of a rollout.
    """
    need = connections + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise UsageError(
            f"{connections} hosts need {need} open files, this machine lets a process have {hard}",
            hint=f"ulimit -Hn {need} as root, or a group at a time with --limit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
