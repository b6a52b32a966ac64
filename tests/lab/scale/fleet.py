"""The same small job on lab hosts by several tools, side by side in one run: seconds, CPU and ratios.

The job: facts, a folder, two templates, daemon-reload when one changed, a unit enabled and running. Each tool
does it once (which changes things) and then again when nothing has to change. The rounds of all tools are
interleaved, because the machine is shared and its load changes; a ratio is the median of the rounds' ratios.
The floor is one new OpenSSH connection and one script a host.
"""

import statistics
from collections.abc import Callable
from typing import Any

from inventory.hosts import load_inventory
from tests.lab.hosts import Lab
from tests.lab.scale.job import FORKS, clean, eyas, floor
from tests.lab.scale.meter import Cost, here, measured
from tests.lab.scale.others import others as other_tools
from tests.lab.scale.others import versions

__all__ = ["small_job", "table"]


def small_job(lab: Lab, *, rounds: int, others: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """A JSON document: per tool the first run and ``rounds`` runs without a change."""
    hosts = list(load_inventory(lab.inventory).select("all"))
    tools: dict[str, Callable[[], object]] = {
        "floor": lambda: floor(lab, hosts),
        "eyas": lambda: eyas(hosts),
    }
    if others:
        tools |= other_tools(lab)
    first: dict[str, Cost] = {}
    again: dict[str, list[Cost]] = {name: [] for name in tools}
    for name, run in tools.items():
        clean(lab, hosts)
        first[name], _ = measured(lab, run)
        say(f"{name}: first run {first[name].seconds:.2f} s")
    for number in range(1, rounds + 1):
        for name, run in tools.items():
            cost, made = measured(lab, run)
            if made:
                raise RuntimeError(f"{name}: the run without a change made {made} changes")
            again[name].append(cost)
            say(f"{name}: no change, round {number}: {cost.seconds:.2f} s, {cost.cpu_s:.2f} s of CPU")
    rows = [_row(name, first[name], again) for name in tools]
    return {
        "schema": 1,
        "hosts": len(hosts),
        "forks": FORKS,
        **here(),
        "versions": versions() if others else {},
        "tools": rows,
    }


def _row(name: str, first: Cost, again: dict[str, list[Cost]]) -> dict[str, Any]:
    mine, floors, ours = again[name], again["floor"], again["eyas"]
    return {
        "tool": name,
        "first": first.as_dict(),
        "again": [c.as_dict() for c in mine],
        "again_s": round(min(c.seconds for c in mine), 3),
        "again_cpu_s": round(min(c.cpu_s for c in mine), 3),
        "times_the_floor": _ratio(mine, floors, "seconds"),
        "cpu_times_the_floor": _ratio(mine, floors, "cpu_s"),
        "times_eyas": _ratio(mine, ours, "seconds"),
    }


def _ratio(mine: list[Cost], other: list[Cost], what: str) -> float:
    pairs = zip(mine, other, strict=True)
    ratios: list[float] = [getattr(a, what) / getattr(b, what) for a, b in pairs]
    return round(statistics.median(ratios), 2)


def table(found: dict[str, Any]) -> str:
    """For a terminal."""
    load = found["load"][0]
    head = f"{found['hosts']} hosts, {found['forks']} forks, {found['cpus']} CPUs for both ends, load {load}"
    names = f"{'TOOL':<16} {'FIRST RUN':>10} {'NO CHANGE':>10} {'CPU':>8} {'x FLOOR':>8} {'x EYAS':>7}"
    return "\n".join([head, names, *map(_line, found["tools"])])


def _line(r: dict[str, Any]) -> str:
    times = f"{r['first']['seconds']:>8.2f} s {r['again_s']:>8.2f} s {r['again_cpu_s']:>6.2f} s"
    return f"{r['tool']:<16} {times} {r['times_the_floor']:>8} {r['times_eyas']:>7}"
