"""Measure the doctor: `python -m tests.bench_doctor [--large MEBIBYTES]`. Speed, linear cost, peak memory.
Or a live host: `python -m tests.bench_doctor --host NAME --inventory FILE`, doctor and facts in turn.

Each log is read by a process of its own from a file, as `invoke doctor --log FILE` does, so that its peak is
its own. Kinds: a healthy engine's journal, one of failing restarts, and text made to hurt (anchors and
examples of every signature in random order, on lines and on one endless line). ``--large`` adds a file of
that size; 2048 is the promise of the documentation. Exits 1 when a promise is broken.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from checks.doctor import Inputs, catalogue, diagnose
from checks.doctor.sources import Blocks

ROOT = Path(__file__).resolve().parent.parent
REAL = ROOT / "tests" / "cases" / "real"
MEBIBYTE = 1 << 20
#: The promises: seconds for 1 MiB of journal, MiB of memory for anything, growth of cost from 10 to 50 MiB.
JOURNAL_S, PEAK_MIB, GROWTH = 0.5, 200, 6.5
PROGRESS = 128 << 20


@dataclass(frozen=True)
class Run:
    """One log. CPU seconds, the best of three for a small one: a busy machine disturbs them least."""

    name: str
    mib: float
    cpu_s: float
    wall_s: float
    peak_mib: float
    idle_mib: float


def repeated(name: str, mebibytes: int) -> Iterator[bytes]:
    text = (REAL / f"{name}.txt").read_bytes()
    block = (text * (MEBIBYTE // len(text) + 1))[:MEBIBYTE]
    return (block for _ in range(mebibytes))


def hostile(mebibytes: int, glue: str) -> Iterator[bytes]:
    source = random.Random(7)
    words = [a.replace("\n", " ") for s in catalogue().signatures for a in (*s.anchors, *s.examples)]
    for _ in range(mebibytes):
        text = glue.join(source.choices(words, k=20_000))
        yield text.encode()[:MEBIBYTE]


def logs(large: int) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    yield "journal of a healthy engine", 1, repeated("h200-q32-base", 1)
    yield "journal of failing restarts", 1, repeated("h200-oom-weights", 1)
    for size in (10, 50):
        yield "hostile lines", size, hostile(size, "\n")
        yield "hostile endless line", size, hostile(size, " ")
    if large:
        yield "large journal", large, repeated("h200-q32-base", large)


class Told(Blocks):
    """Blocks of a file, with a line on standard error every PROGRESS bytes."""

    def __iter__(self) -> Iterator[bytes]:
        done, began = 0, time.process_time()
        for block in super().__iter__():
            yield block
            done += len(block)
            if done % PROGRESS < len(block):
                spent = time.process_time() - began
                print(f"  {done >> 20:6} MiB after {spent:.0f} s CPU", file=sys.stderr, flush=True)


def child(path: str) -> None:
    """In a process of its own: read one file, print what it cost."""
    diagnose(Inputs(log=[b"warm up\n"]))
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = []
    for _ in range(3 if Path(path).stat().st_size <= MEBIBYTE else 1):
        wall, cpu = time.perf_counter(), time.process_time()
        diagnose(Inputs(log=Told(path)))
        told.append([time.process_time() - cpu, time.perf_counter() - wall])
    print(json.dumps([*min(told), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, idle]))


def measure(name: str, blocks: Iterator[bytes], folder: Path) -> Run:
    path = folder / "log.txt"
    with path.open("wb") as file:
        for block in blocks:
            file.write(block)
    argv = [sys.executable, "-m", "tests.bench_doctor", "--child", str(path)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    size = path.stat().st_size / MEBIBYTE
    path.unlink()
    return Run(name, size, *json.loads(done.stdout))


@dataclass(frozen=True)
class Live:
    """Medians of ``invoke TASK --host NAME``: seconds on the clock, CPU seconds of the operator's end."""

    task: str
    wall_s: float
    cpu_s: float


def live(
    host: str, inventory: str, rounds: int, between: Callable[[str], None] = lambda _: None
) -> list[Live]:
    """`facts` and `doctor` of one host in turn, so that a busy machine disturbs both; one round not counted.

    ``between`` is called with the task's name after each.
    """
    told: dict[str, list[tuple[float, float]]] = {"facts": [], "doctor": []}
    where = ["--host", host, "--inventory", inventory, "--json"]
    for _ in range(rounds + 1):
        for task, costs in told.items():
            wall, before = time.perf_counter(), _children_s()
            subprocess.run(
                [sys.executable, "tasks.py", task, *where], cwd=ROOT, stdout=subprocess.PIPE, check=False
            )
            costs.append((time.perf_counter() - wall, _children_s() - before))
            between(task)
    return [Live(t, *(median(c) for c in zip(*costs[1:], strict=True))) for t, costs in told.items()]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def broken(runs: list[Run]) -> list[str]:
    """The promises that do not hold."""
    found = [f"{r.name}: {r.cpu_s:.2f} s for 1 MiB" for r in runs if r.mib <= 1 and r.cpu_s > JOURNAL_S]
    found += [f"{r.name} ({r.mib:.0f} MiB): peak {r.peak_mib:.0f} MiB" for r in runs if r.peak_mib > PEAK_MIB]
    for name in {r.name for r in runs if r.name.startswith("hostile")}:
        small, big = sorted((r for r in runs if r.name == name), key=lambda r: r.mib)
        if big.cpu_s > GROWTH * small.cpu_s:
            found.append(f"{name}: {big.cpu_s / small.cpu_s:.1f} times the cost for 5 times the text")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=0, metavar="MEBIBYTES")
    parser.add_argument("--only", default="", metavar="WORD", help="only logs whose kind has this word")
    parser.add_argument("--host", default="", help="a live host of --inventory, instead of logs")
    parser.add_argument("--inventory", default="")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child)
        return 0
    if asked.host:
        for one in live(asked.host, asked.inventory, 5):
            print(f"{one.task:8} {one.wall_s:6.2f} s  {one.cpu_s:6.2f} s CPU here")
        return 0
    runs = []
    with tempfile.TemporaryDirectory(prefix="bench-doctor-") as folder:
        for name, _, blocks in logs(asked.large):
            if asked.only not in name:
                continue
            run = measure(name, blocks, Path(folder))
            rate = f"{run.cpu_s:7.2f} s CPU  {run.mib / run.cpu_s:6.1f} MiB/s"
            peak = f"peak {run.peak_mib:4.0f} MiB (idle {run.idle_mib:.0f})"
            print(f"{name:28} {run.mib:7.1f} MiB  {rate}  {peak}", flush=True)
            runs.append(run)
    wrong = broken(runs)
    print("\n".join(wrong) or "every promise holds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
