"""What a run costs: seconds on the clock, and of CPU at the operator's and at the hosts' end."""

import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.lab import cgroups
from tests.lab.hosts import Lab

__all__ = ["Cost", "here", "measured"]


@dataclass(frozen=True)
class Cost:
    """Seconds. The operator's CPU lacks children that were left running (ansible's SSH masters)."""

    seconds: float
    operator_cpu_s: float
    hosts_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.operator_cpu_s + self.hosts_cpu_s

    def as_dict(self) -> dict[str, float]:
        return {k: round(v, 3) for k, v in asdict(self).items()}


def _own_cpu() -> float:
    both = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in both)


def measured(lab: Lab, run: Callable[[], object]) -> tuple[Cost, object]:
    """What ``run`` cost, and what it returned."""
    began, own, hosts = time.monotonic(), _own_cpu(), cgroups.cpu_seconds(lab.name)
    made = run()
    seconds = time.monotonic() - began
    return Cost(seconds, _own_cpu() - own, cgroups.cpu_seconds(lab.name) - hosts), made


def here() -> dict[str, Any]:
    """The machine and how busy it was: figures without it say nothing."""
    return {"cpus": os.cpu_count(), "load": [round(n, 1) for n in os.getloadavg()]}
