"""Measure the doctor: `python -m tests.bench_doctor [MEBIBYTES]`. Prints seconds, MiB/s and peak memory.

Three kinds of log: a healthy engine's journal, one of failing restarts, and text made to hurt (anchors and
examples of every signature in random order, on lines and on one endless line).
"""

import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from checks.doctor import Inputs, catalogue, diagnose

REAL = Path(__file__).resolve().parent / "cases" / "real"
MEBIBYTE = 1 << 20


def repeated(name: str, mebibytes: int) -> Iterator[bytes]:
    text = (REAL / f"{name}.txt").read_bytes()
    block = (text * (MEBIBYTE // len(text) + 1))[:MEBIBYTE]
    return (block for _ in range(mebibytes))


def hostile(mebibytes: int, glue: str) -> Iterator[bytes]:
    source = random.Random(7)
    words = [a for s in catalogue().signatures for a in (*s.anchors, *s.examples)]
    for _ in range(mebibytes):
        text = glue.join(source.choice(words).replace("\n", " ") for _ in range(20_000))
        yield text.encode()[:MEBIBYTE]


def measure(name: str, blocks: Iterator[bytes]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    report = diagnose(Inputs(log=blocks))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    size = report.outcomes[0].data["bytes"] / MEBIBYTE
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times = f"wall {wall:6.2f} s  cpu {cpu:6.2f} s  {size / cpu:6.1f} MiB/s"
    print(f"{name:24} {size:7.1f} MiB  {times}  peak {peak:.0f} MiB")


def main() -> None:
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    diagnose(Inputs(log=[b"warm up\n"]))
    measure("1 MiB healthy journal", repeated("h200-q32-base", 1))
    measure("1 MiB failing restarts", repeated("h200-oom-weights", 1))
    measure("healthy journal", repeated("h200-q32-base", mebibytes))
    measure("hostile lines", hostile(mebibytes, "\n"))
    measure("hostile endless line", hostile(mebibytes, " "))


if __name__ == "__main__":
    main()
