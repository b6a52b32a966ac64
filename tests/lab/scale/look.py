"""Looks at many light hosts through the command line itself: seconds, its peak memory, CPU of both ends.

A look is `facts`: a new connection and the whole probe. Fewer hosts first, so that growth can be seen.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inventory.hosts import load_inventory
from provision import ssh
from provision.converge import Options as ConvergeOptions
from provision.fleet import each_host
from provision.rollout.crew import HostCrew
from provision.rollout.plan import Options
from tests.lab import cgroups
from tests.lab.hosts import Lab
from tests.lab.scale.meter import here

__all__ = ["look_at_all", "table"]

ROOT = Path(__file__).resolve().parents[3]
FORKS = 20


def look_at_all(lab: Lab, *, say: Callable[[str], None]) -> dict[str, Any]:
    """A JSON document. Raises RuntimeError when a host gave no facts."""
    names = list(lab.hosts)
    _look(lab, names[:1])  # byte-compiles, fills caches
    sizes = sorted({n for n in (10, 50, len(names)) if n <= len(names)})
    rows = []
    for size in sizes:
        rows.append(_look(lab, names[:size]))
        say(f"{size} hosts: {rows[-1]['seconds']} s, {rows[-1]['peak_mib']} MiB")
    held = _hold(lab)
    say(f"held: {held}")
    return {"schema": 1, "forks": FORKS, **here(), "looks": rows, "held": held}


def _hold(lab: Lab) -> dict[str, float]:
    """What a rollout keeps of each host while it runs: a connection and the host's lock."""
    hosts = list(load_inventory(lab.inventory).select("all"))
    options = ssh.SshOptions()
    crew = HostCrew(lambda h: ssh.connect(h, options), "bench", Options(), ConvergeOptions(), lambda *_: None)
    with crew:
        crew.take(hosts[0])
        before = _now()
        each_host(hosts[1:], crew.take, forks=FORKS)
        after = _now()
    each = {k: round((after[k] - before[k]) / (len(hosts) - 1), 3) for k in before}
    return {"hosts": len(hosts), **each}


def _now() -> dict[str, float]:
    status = Path("/proc/self/status").read_text().split()
    return {
        "mib_per_host": int(status[status.index("VmRSS:") + 1]) / 1024,
        "threads_per_host": threading.active_count(),
        "files_per_host": len(list(Path("/proc/self/fd").iterdir())),
    }


def _look(lab: Lab, names: list[str]) -> dict[str, Any]:
    argv = [sys.executable, "-m", "invoke", "facts", "--host", ",".join(names), "--json"]
    argv += ["--inventory", str(lab.inventory), "--forks", str(FORKS)]
    before, began = cgroups.cpu_seconds(lab.name), time.monotonic()
    with (lab.home / "facts.json").open("w+b") as out:
        p = subprocess.Popen(argv, cwd=ROOT, stdout=out, env={**os.environ, "COLUMNS": "100"})
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        out.seek(0)
        told = json.load(out)
    seen = len(told["hosts"])
    if p.returncode or seen != len(names):
        raise RuntimeError(f"facts ended with {p.returncode}; {seen} of {len(names)} hosts told theirs")
    return {
        "hosts": len(names),
        "seconds": round(seconds, 2),
        "peak_mib": used.ru_maxrss // 1024,
        "operator_cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "hosts_cpu_s": round(cgroups.cpu_seconds(lab.name) - before, 2),
    }


def table(found: dict[str, Any]) -> str:
    head = f"looks, {found['forks']} forks, {found['cpus']} CPUs for both ends, load {found['load'][0]}"
    names = " HOSTS  SECONDS  MS/HOST  PEAK MiB  OPERATOR CPU  HOSTS CPU"
    held = f"held by a rollout, per host: {json.dumps(found['held'])}"
    return "\n".join([head, names, *map(_line, found["looks"]), held])


def _line(r: dict[str, Any]) -> str:
    each = r["seconds"] / r["hosts"] * 1000
    cpu = f"{r['operator_cpu_s']:>11.2f} s {r['hosts_cpu_s']:>8.2f} s"
    return f"{r['hosts']:>6} {r['seconds']:>8.2f} {each:>8.0f} {r['peak_mib']:>9} {cpu}"
