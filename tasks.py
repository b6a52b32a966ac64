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

from inventory.errors import EyasError

ROOT = Path(__file__).resolve().parent


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

        return task(positional=[], auto_shortflags=False, help=help or {}, **options)(run)

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
    help={
        "scenario": "A JSON file with one start's inputs: device_total_gib, model_config, ...",
        "truth": "Compare with real starts instead and print the errors.",
        "rows": "With --truth: a file of measured starts (default: this project's own).",
        "json": "Print one JSON document.",
    },
)
def plan(c: Context, scenario: str = "", truth: bool = False, rows: str = "", json: bool = False) -> int:
    """What a start takes on each GPU, whether it fits, and the cheapest changes when it doesn't."""
    from checks.planner import surface  # noqa: PLC0415 - other tasks need not load it

    if truth:
        return surface.truth(Path(rows) if rows else ROOT / "tests/data/h200/measurements.json", as_json=json)
    return surface.scenario(scenario, as_json=json)


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
