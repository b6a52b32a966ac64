"""The command line: parse, select hosts, call one function, print, exit code. Nothing else lives here.

`invoke TASK --help` explains each task; exit codes are in inventory/errors.py.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Collection, Context, Program, task
from invoke.exceptions import Exit
from invoke.parser.parser import ParseMachine

from inventory.errors import EyasError

ROOT = Path(__file__).resolve().parent


def _optional_words() -> None:
    """Let a task's positional arguments be optional words: an option or the line's end leaves the rest empty.

    Invoke itself feeds them ``--help`` and calls each missing one an error.
    """
    handle, complete = ParseMachine.handle, ParseMachine.complete_context

    def end_words(machine: ParseMachine) -> None:
        for arg in machine.context.missing_positional_args if machine.context else ():
            arg.value = ""

    def handle_token(machine: ParseMachine, token: str) -> None:
        if token.startswith("-"):
            end_words(machine)
        handle(machine, token)

    def complete_context(machine: ParseMachine) -> None:
        end_words(machine)
        complete(machine)

    patched: Any = ParseMachine
    patched.handle, patched.complete_context = handle_token, complete_context


_optional_words()


def command(*, help: dict[str, str] | None = None, **options: Any) -> Callable[..., Any]:
    """An invoke task whose errors become a message, one next step and eyas's exit code.

    ``positional=[]`` because a required argument would otherwise swallow ``--help``.
    """

    def wrap(body: Callable[..., int | None]) -> Any:
        @functools.wraps(body)
        def run(c: Context, *args: Any, **kwargs: Any) -> None:
            try:
                code = body(c, *args, **kwargs)
            except EyasError as e:
                if kwargs.get("json"):
                    print(json.dumps({"schema": 1, "error": e.message, "hint": e.hint, "host": e.host}))
                raise Exit(f"error: {e}", e.exit_code) from e
            except KeyboardInterrupt as e:
                raise Exit("interrupted; run the same command again to finish", 130) from e
            if code:
                raise Exit(code=code)

        return task(**{"positional": [], "auto_shortflags": False, "help": help or {}, **options})(run)

    return wrap


@command(help={"fix": "Format and apply safe fixes instead of only reporting.", "yes": "Ask nothing."})
def check(c: Context, fix: bool = False, yes: bool = False) -> int:
    """The one contributor command: format, lint, types, unit tests, generated docs."""
    steps = [
        ["ruff", "format", *([] if fix else ["--check"]), "."],
        ["ruff", "check", *(["--fix"] if fix else []), "."],
        ["mypy"],
        ["pytest", "-q", "-m", "not lab and not engine"],
    ]
    return _each(steps)


@command(help={"quick": "Unit tests only.", "yes": "Install missing system packages without asking."})
def test(c: Context, quick: bool = False, yes: bool = False) -> int:
    """All tests; those that need Linux and root say so when they are skipped."""
    return _each([["pytest", "-q", *(["-m", "not lab and not engine"] if quick else [])]])


@command(
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
    from tests.lab import cli  # noqa: PLC0415 - only this task needs the lab

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
    }
    return cli.run(action or "", host or "", what or "", **options)


def _each(steps: list[list[str]]) -> int:
    failed = [
        s for s in steps if subprocess.run([sys.executable, "-m", *s], cwd=ROOT, check=False).returncode
    ]
    return 5 if failed else 0


def main() -> None:
    """The console script `eyas`: the same tasks under one name."""
    from importlib.metadata import version  # noqa: PLC0415 - costs 20 ms that tasks need not pay

    Program(
        name="eyas", namespace=Collection.from_module(sys.modules[__name__]), version=version("eyas")
    ).run()
