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

        return task(
            positional=options.pop("positional", []), auto_shortflags=False, help=help or {}, **options
        )(run)

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
        "log": "A log file, or - for standard input.",
        "facts": "A saved probe, or a flat JSON object (gpu, count, driver, torch, model, flags, ...).",
        "unit": "The service's unit file (or `systemctl cat` output).",
        "metrics": "A saved /metrics page, or JSON with measured numbers.",
        "engine": "vllm or sglang, when the log does not tell.",
        "engine-version": "The engine's version, when the log does not tell.",
        "bundle": "A bundle that --save made.",
        "save": "Folder for a redacted bundle of what was looked at.",
        "list": "List every code and its cause.",
        "score": "Contributors: score a folder of cases.",
        "json": "One JSON document on standard output.",
    }
)
def doctor(
    c: Context,
    log: str = "",
    facts: str = "",
    unit: str = "",
    metrics: str = "",
    engine: str = "",
    engine_version: str = "",
    bundle: str = "",
    save: str = "",
    list: bool = False,
    score: str = "",
    json: bool = False,
) -> int:
    """Name the one cause of a failed or slow deployment, with evidence and a computed fix.

    Exit 0: no error found, 4: errors found, 3: could not look.
    """
    from checks.doctor import cli  # noqa: PLC0415 - loads the catalogue

    if list:
        return cli.show_list(as_json=json)
    if score:
        return cli.show_score(Path(score), as_json=json)
    inputs = cli.gather(
        bundle=bundle, log=log, facts=facts, unit=unit, metrics=metrics, engine=engine, version=engine_version
    )
    return cli.show_diagnosis(inputs, as_json=json, save=save)


@command(
    positional=["name"],
    help={"name": "A code (MEM010) or a cause (kv-cache-too-small).", "json": "One JSON document."},
)
def explain(c: Context, name: str, json: bool = False) -> int:
    """What a doctor's code means: what, why, example, fix."""
    from checks.doctor import cli  # noqa: PLC0415 - loads the catalogue

    if name in {"--help", "-h"}:  # a positional argument takes the word before invoke does
        print("Usage: invoke explain CODE|CAUSE [--json]; all codes: invoke doctor --list")
        return 0
    return cli.show_code(name, as_json=json)


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
