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
from tests.lab.scale.others import ToolFailed, versions
from tests.lab.scale.others import others as other_tools

__all__ = ["small_job", "table"]

#: Round -> what a run cost; a round that the tool failed is missing.
Rounds = dict[int, Cost]


def small_job(lab: Lab, *, rounds: int, others: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """A JSON document: per tool the first run and ``rounds`` runs without a change."""
    hosts = list(load_inventory(lab.inventory).select("all"))
    tools: dict[str, Callable[[], object]] = {
        "floor": lambda: floor(lab, hosts),
        "eyas": lambda: eyas(hosts),
    }
    if others:
        tools |= other_tools(lab)
    runs: dict[str, Rounds] = {name: {} for name in tools}
    failed: dict[str, list[str]] = {name: [] for name in tools}
    for number in range(rounds + 1):
        for name, run in tools.items():
            if not number:
                clean(lab, hosts)
            try:
                cost, made = measured(lab, run)
            except ToolFailed as e:
                failed[name].append(str(e))
                say(f"{name}: {'no change' if number else 'first run'}: {e}")
                continue
            if number and made:
                raise RuntimeError(f"{name}: the run without a change made {made} changes")
            runs[name][number] = cost
            what = f"no change, round {number}" if number else "first run"
            say(f"{name}: {what}: {cost.seconds:.2f} s, {cost.cpu_s:.2f} s of CPU")
    rows = [_row(name, runs, failed[name]) for name in tools]
    return {
        "schema": 1,
        "hosts": len(hosts),
        "forks": FORKS,
        **here(),
        "versions": versions() if others else {},
        "tools": rows,
    }


def _row(name: str, runs: dict[str, Rounds], failed: list[str]) -> dict[str, Any]:
    mine, floors, ours = runs[name], runs["floor"], runs["eyas"]
    again = [cost for number, cost in mine.items() if number]
    return {
        "tool": name,
        "failed": failed,
        "first": mine[0].as_dict() if 0 in mine else None,
        "again": [c.as_dict() for c in again],
        "again_s": round(min(c.seconds for c in again), 3) if again else None,
        "again_cpu_s": round(min(c.cpu_s for c in again), 3) if again else None,
        "times_the_floor": _ratio(mine, floors, "seconds"),
        "cpu_times_the_floor": _ratio(mine, floors, "cpu_s"),
        "times_eyas": _ratio(mine, ours, "seconds"),
    }


def _ratio(mine: Rounds, other: Rounds, what: str) -> float | None:
    """The median of the rounds that both ended well; None where there is no such round."""
    both = [n for n in mine if n and n in other]
    ratios: list[float] = [getattr(mine[n], what) / getattr(other[n], what) for n in both]
    return round(statistics.median(ratios), 2) if ratios else None


def table(found: dict[str, Any]) -> str:
    """For a terminal."""
    load = found["load"][0]
    head = f"{found['hosts']} hosts, {found['forks']} forks, {found['cpus']} CPUs for both ends, load {load}"
    names = f"{'TOOL':<16} {'FIRST RUN':>10} {'NO CHANGE':>10} {'CPU':>8} {'x FLOOR':>8} {'x EYAS':>7}"
    return "\n".join([head, names, *map(_line, found["tools"])])


def _line(r: dict[str, Any]) -> str:
    if not r["again"] or not r["first"]:
        return f"{r['tool']:<16} failed: {r['failed'][0]}"
    times = f"{r['first']['seconds']:>8.2f} s {r['again_s']:>8.2f} s {r['again_cpu_s']:>6.2f} s"
    note = f"  failed {len(r['failed'])} times" if r["failed"] else ""
    return f"{r['tool']:<16} {times} {r['times_the_floor']!s:>8} {r['times_eyas']!s:>7}{note}"
