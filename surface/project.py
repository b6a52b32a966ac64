"""What a contributor runs, from a checkout: checks, tests, pages, the lab, the demo."""

import subprocess
import sys

from invoke import Context

from surface.commandline import ROOT, command

UNIT = "not lab and not engine and not process"


UNIT_TESTS = ["pytest", "-q", "-n", "auto", "-m", UNIT]
#: A lab host mostly waits: two files run side by side, each with labs of its own. The engine wants all cores.
LAB_TESTS = [
    ["pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", f"not ({UNIT}) and not engine"],
    ["pytest", "-q", "-m", "engine"],
]
FAILED_TESTS = ["pytest", "-q", "--last-failed", "--last-failed-no-failures=none", "-m", f"not ({UNIT})"]


@command(
    checkout=True,
    help={
        "fix": "Format and apply safe fixes instead of only reporting.",
        "tests": "--no-tests: without the unit tests.",
        "yes": "Ask nothing.",
    },
)
def check(c: Context, fix: bool = False, tests: bool = True, yes: bool = False) -> int:
    """The one contributor command: format, lint, types, unit tests, generated docs."""
    steps = [
        ["ruff", "format", *([] if fix else ["--check"]), "."],
        ["ruff", "check", *(["--fix"] if fix else []), "."],
        ["mypy"],
    ]
    return _each([*steps, UNIT_TESTS] if tests else steps)


@command(checkout=True)
def docs(c: Context) -> None:
    """Write the generated pages: docs/tasks.md, docs/codes.md, the task table of README.md."""
    from tests.generate_docs import write

    for path in write():
        print(f"wrote {path.relative_to(ROOT)}")


@command(
    checkout=True,
    help={
        "quick": "Unit tests only.",
        "again": "Run what failed in the lab once more: tells an unsteady test from a broken one.",
        "yes": "Install missing system packages without asking.",
    },
)
def test(c: Context, quick: bool = False, again: bool = False, yes: bool = False) -> int:
    """All tests; those that need Linux and root say so when they are skipped."""
    from tests.lab.needs import why_no_lab

    unit = _each([UNIT_TESTS])
    if quick:
        print("eyas: left out: tests that start processes, lab hosts or the engine (--quick)")
        return unit
    if reason := why_no_lab():
        print(f"eyas: tests of lab hosts and the engine are skipped: {reason}", flush=True)
    in_lab = _each(LAB_TESTS)
    if in_lab and again:
        print("eyas: once more, only what failed in the lab; what passes now is unsteady and wants a look")
        in_lab = _each([FAILED_TESTS])
    return max(unit, in_lab)


@command(
    checkout=True,
    positional=["action", "host", "what"],
    help={
        "action": "up | status | down | ssh | run | fault | heal",
        "host": "One host of the lab.",
        "what": "ssh, run: a command line. fault, heal: which (`lab fault` lists them).",
        "value": "fault: its parameter, e.g. a port, a rate, a size.",
        "hosts": "up: how many, named gpu01, gpu02, ...",
        "profile": "up: the cards (tests/lab/profiles), e.g. rtx4090x2 or h200x2+xid79.",
        "lab": "Which lab, where several live side by side.",
        "os": "up: what the host says it is: ubuntu, ubuntu2204, debian.",
        "release": "up: what it is built from: auto, bookworm, noble.",
        "size": "up: a small disk, e.g. 512M (held in memory).",
        "memory": "up: memory of the whole host, e.g. 2G.",
        "user": "up: the inventory's user: op or root.",
        "sudo": "up: op's sudo: nopasswd or password.",
        "all": "down: every lab.",
        "json": "One JSON document on stdout.",
        "yes": "Install missing system packages without asking.",
    },
)
def lab(
    c: Context,
    action: str | None = None,
    host: str | None = None,
    what: str | None = None,
    value: str = "",
    hosts: int = 2,
    profile: str = "rtx4090x1",
    lab: str = "default",
    os: str = "ubuntu",
    release: str = "auto",
    size: str = "",
    memory: str = "",
    user: str = "op",
    sudo: str = "nopasswd",
    all: bool = False,
    json: bool = False,
    yes: bool = False,
) -> int:
    """Real hosts with simulated cards on this machine: `lab up --hosts 4`, `lab ssh gpu01`, `lab down`."""
    from tests.lab import cli

    options = {
        "hosts": hosts,
        "profile": profile,
        "lab": lab,
        "os": os,
        "release": release,
        "size": size,
        "memory": memory,
        "user": user,
        "sudo": sudo,
        "all": all,
        "json": json,
        "yes": yes,
        "value": value,
    }
    return cli.run(action or "", host or "", what or "", **options)


@command(
    checkout=True,
    help={
        "quick": "With the stand-in engine: a minute, and it proves nothing about an engine.",
        "down": "Remove the lab host at the end.",
        "yes": "Install missing system packages without asking.",
        "json": "One JSON document on stdout.",
    },
)
def demo(c: Context, quick: bool = False, down: bool = False, yes: bool = False, json: bool = False) -> int:
    """The main job on a lab host: real SSH, systemd, hash-locked wheels, vLLM with an EAGLE-3 head, proof."""
    from tests.lab import demo

    return demo.run(quick=quick, as_json=json, yes=yes, down=down)


@command(
    checkout=True,
    name="bench-fleet",
    help={
        "hosts": "So many lab hosts.",
        "lab": "Which lab; made when it is not there.",
        "rounds": "Runs without a change of each tool; the best counts.",
        "others": "Also ansible-core and pyinfra, installed from PyPI into an environment of their own.",
        "yes": "Install missing system packages without asking.",
        "json": "One JSON document.",
    },
)
def bench_fleet(
    c: Context,
    hosts: int = 20,
    lab: str = "bench",
    rounds: int = 3,
    others: bool = False,
    yes: bool = False,
    json: bool = False,
) -> int:
    """The same small job on lab hosts by eyas, by other tools, and by one plain SSH connection a host."""
    from tests.lab import bench_fleet as bench
    from tests.lab.hosts import Lab

    made = Lab.up([f"gpu{n:02}" for n in range(1, hosts + 1)], name=lab, yes=yes)
    return bench.bench_fleet(made, rounds=rounds, others=others, as_json=json)


def _each(steps: list[list[str]]) -> int:
    failed = [
        s for s in steps if subprocess.run([sys.executable, "-m", *s], cwd=ROOT, check=False).returncode
    ]
    return 5 if failed else 0
