"""What a contributor runs, from a checkout: checks, tests, pages, the lab, the demo."""

import json
import subprocess
import sys

from invoke import Context

from surface.commandline import ROOT, command

UNIT = "not lab and not engine and not process and not browser"


UNIT_TESTS = ["pytest", "-q", "-n", "auto", "-m", UNIT]
#: A lab host mostly waits: two files run side by side, each with labs of its own. The engine wants all cores.
LAB_TESTS = [
    ["pytest", "-q", "-n", "3", "--dist", "loadfile", "-m", f"not ({UNIT}) and not engine and not long"],
    ["pytest", "-q", "-m", "engine and not long"],
]
LONG_TESTS = [["pytest", "-q", "-m", "long"]]
#: Where pytest keeps what failed last: `{"tests/x.py::test_y": true}`.
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


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
        "long": "Also what takes long: the real engine on two hosts, its bench, Ray, sglang-router.",
        "again": "Run lab files in which a test failed once more: tells an unsteady test from a broken one.",
        "yes": "Install missing system packages without asking.",
    },
)
def test(c: Context, quick: bool = False, long: bool = False, again: bool = False, yes: bool = False) -> int:
    """All tests; those that need Linux and root say so when they are skipped."""
    from tests.lab.needs import why_no_lab

    unit = _each([UNIT_TESTS])
    if quick:
        print("eyas: left out: tests that start processes, lab hosts or the engine (--quick)")
        return unit
    if yes:
        from tests.report.chromium import install

        install()
    if reason := why_no_lab():
        print(f"eyas: tests of lab hosts and the engine are skipped: {reason}", flush=True)
    in_lab = _each([*LAB_TESTS, *(LONG_TESTS if long else [])])
    if in_lab and again:
        print("eyas: once more, only what failed in the lab; what passes now is unsteady and wants a look")
        in_lab = _each([again_tests(long=long)])
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
        "light": "up: sshd only, no systemd and no card: for many hosts.",
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
    light: bool = False,
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
        "light": light,
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


def again_tests(*, long: bool) -> list[str]:
    """The argv for the files in which a lab test failed, whole: the tests of one file share their hosts."""
    failed = json.loads(LAST_FAILED.read_text()) if LAST_FAILED.exists() else {}
    files = sorted({test.partition("::")[0] for test in failed})
    marks = f"not ({UNIT})" if long else f"not ({UNIT}) and not long"
    return ["pytest", "-q", *(f for f in files if (ROOT / f).exists()), "-m", marks]


def _each(steps: list[list[str]]) -> int:
    failed = [
        s for s in steps if subprocess.run([sys.executable, "-m", *s], cwd=ROOT, check=False).returncode
    ]
    return 5 if failed else 0
