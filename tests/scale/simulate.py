"""`invoke simulate-fleet`: what looks, distribution and rollout cost at 100, 1,000 and 10,000 hosts.

The rollout's loop, plan, journal and resume, the batches, the tree and the decoding of facts are the
product's own and run for real; the time of networks and engines is reckoned from parameters.toml.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inventory.errors import UsageError
from provision.rollout.distribute import WIDTH
from tests.scale import distribution, look
from tests.scale.parameters import Parameters, load

__all__ = ["simulate_fleet"]

ROOT = Path(__file__).resolve().parents[2]
FANOUTS = (1, 2, 4)
MOST = 100_000


def simulate_fleet(
    hosts: str, gigabytes: float, mbit: float, forks: int, *, as_json: bool, say: Callable[[str], None]
) -> int:
    """Print tables, or one JSON document."""
    sizes = _sizes(hosts)
    if not 0 < gigabytes <= 10_000 or not 1 <= mbit <= 1_000_000 or not 1 <= forks <= 500:
        raise UsageError(
            "a size, rate or number of forks that no fleet has", hint="--gigabytes 65 --mbit 1000"
        )
    known = load()
    found: list[dict[str, Any]] = []
    for size in sizes:
        found.append(_one(size, gigabytes * 1e9, mbit * 1e6 / 8, forks, known))
        say(f"{size} hosts: done")
    document: dict[str, Any] = {
        "schema": 1,
        "gigabytes": gigabytes,
        "mbit": mbit,
        "forks": forks,
        "width": WIDTH,
    }
    document |= {"load": os.getloadavg()[0], "cpus": os.cpu_count(), "fleets": found}
    print(json.dumps(document) if as_json else _tables(document))
    return 0


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(word) for word in text.replace("_", "").split(",")]
    except ValueError as e:
        raise UsageError(f"--hosts {text!r} is no list of numbers", hint="--hosts 1000,10000") from e
    if not all(2 <= n <= MOST for n in sizes):
        raise UsageError(f"--hosts {text}: from 2 to {MOST} each", hint="--hosts 1000,10000")
    return sizes


def _one(hosts: int, size: float, link: float, forks: int, known: Parameters) -> dict[str, Any]:
    held = {"mib": round(hosts * known.held.mib), "threads": round(hosts * known.held.threads)}
    held["open_files"] = round(hosts * known.held.files)
    return {
        "hosts": hosts,
        "look": {"seconds": round(look.seconds(hosts, forks, known.look)), **_apart("look", hosts)},
        "spread": [
            _spread(hosts, size, link, known, f, w) for f in FANOUTS for w in sorted({forks, WIDTH, hosts})
        ],
        "rollout": _apart("rollout", hosts, "--die-at", str(max(1, hosts // 2))),
        "held": held,
    }


def _spread(
    hosts: int, size: float, link: float, known: Parameters, fanout: int, width: int
) -> dict[str, Any]:
    got = distribution.simulate(hosts, size, link, known.copy_, fanout=fanout, width=width)
    return {"fanout": fanout, "width": width, **asdict(got), "seconds": round(got.seconds)}


def _apart(module: str, *words: object) -> dict[str, Any]:
    argv = [sys.executable, "-m", f"tests.scale.{module}", *map(str, words)]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _tables(d: dict[str, Any]) -> str:
    lines = [f"looks: {d['forks']} forks; CPU and memory measured, load {d['load']:.1f}"]
    lines += ["  HOSTS  MINUTES  DECODE CPU  PEAK MiB  JSON MB"]
    for f in d["fleets"]:
        k = f["look"]
        cells = (
            f"{k['seconds'] / 60:>8.1f} {k['cpu_s']:>9.1f} s {k['peak_mib']:>9} {k['json_bytes'] / 1e6:>8.1f}"
        )
        lines.append(f"{f['hosts']:>7} {cells}")
    lines += [
        "",
        f"{d['gigabytes']:g} GB of weights over {d['mbit']:g} Mbit/s a host; minutes until all have it",
    ]
    lines += ["  HOSTS  FAN-OUT  AT ONCE  MINUTES  DEEPEST"]
    for f in d["fleets"]:
        for k in f["spread"]:
            cells = f"{k['fanout']:>8} {k['width']:>8} {k['seconds'] / 60:>8.0f} {k['deepest']:>8}"
            lines.append(f"{f['hosts']:>7} {cells}")
    lines += [
        "",
        "a rollout that dies half way and is resumed: loop, plan and journal measured; connections reckoned",
    ]
    lines += ["  HOSTS  PLAN  LOOP  RESUME  JOURNAL MB  PEAK MiB  CONNECTIONS: FILES  THREADS  MiB"]
    for f in d["fleets"]:
        k, h = f["rollout"], f["held"]
        cells = f"{k['plan_s']:>4.1f}s {k['loop_s']:>4.1f}s {k['resume_s']:>6.1f}s"
        cells += f" {k['journal_bytes'] / 1e6:>11.1f}"
        kept = f"{h['open_files']:>19} {h['threads']:>8} {h['mib']:>4}"
        lines.append(f"{f['hosts']:>7} {cells} {k['peak_mib']:>9} {kept}")
    return "\n".join(lines)
