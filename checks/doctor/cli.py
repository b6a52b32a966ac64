"""What the ``doctor`` and ``explain`` tasks call: gather, diagnose, print, exit code."""

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from checks.doctor.bundle import read_bundle, write_bundle
from checks.doctor.catalogue import catalogue
from checks.doctor.diagnose import diagnose
from checks.doctor.model import Inputs, Report
from checks.doctor.report import as_text, code_page, code_rows, exit_code, print_report, report_json
from checks.doctor.sources import Blocks, offline, spooled
from inventory.errors import UsageError

__all__ = ["gather", "show_code", "show_diagnosis", "show_list", "show_report", "show_score"]


def gather(
    *,
    bundle: str = "",
    log: str = "",
    facts: str = "",
    unit: str = "",
    metrics: str = "",
    engine: str = "",
    version: str = "",
) -> Inputs:
    """Inputs from files or from a bundle, not both."""
    if bundle:
        if log or facts or unit or metrics:
            raise UsageError(
                "--bundle already holds log, facts, unit and metrics", hint="give --bundle alone"
            )
        return read_bundle(Path(bundle))
    return offline(log=log, facts=facts, unit=unit, metrics=metrics, engine=engine, version=version)


def show_diagnosis(inputs: Inputs, *, as_json: bool = False, save: str = "", junit: str = "") -> int:
    """Diagnose and print; ``save`` writes the redacted bundle, ``junit`` the XML. Returns the exit code."""
    if save and isinstance(inputs.log, Blocks) and inputs.log.path == "-":
        inputs = replace(inputs, log=spooled(inputs.log))
    report = diagnose(inputs)
    code = show_report(report, as_json=as_json)
    if junit:
        from checks.doctor.junit import write_junit  # noqa: PLC0415 - xml is asked for seldom

        write_junit(Path(junit), {inputs.host or "log": report})
    if save:
        path = write_bundle(Path(save), inputs, report)
        print(f"bundle: {path}", file=sys.stderr)
    return code


def show_report(report: Report, *, as_json: bool = False) -> int:
    if as_json:
        print(as_text(report_json(report)))
    else:
        print_report(report, Console())
    return exit_code(report)


def show_list(*, as_json: bool = False) -> int:
    rows = code_rows(catalogue())
    if as_json:
        print(as_text({"schema": 1, "codes": rows}))
        return 0
    table = Table("code", "cause", "severity", "title", box=None)
    for row in rows:
        table.add_row(row["code"], row["slug"], row["severity"], row["title"])
    console = Console()
    (console if console.is_terminal else Console(width=10_000)).print(table)
    return 0


def show_code(name: str, *, as_json: bool = False) -> int:
    code, text = code_page(catalogue(), name)
    if as_json:
        fix = [{"change": s.change, "value": s.value, "command": s.command, "why": s.why} for s in code.fix]
        fields = {k: getattr(code, k) for k in ("code", "slug", "family", "title", "what", "why", "example")}
        print(as_text({"schema": 1, **fields, "severity": code.severity.value, "fix": fix}))
    else:
        Console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def show_score(folder: Path, *, as_json: bool = False) -> int:
    """Print the score; exit 4 when a case is missed, so that a script sees it."""
    from checks.doctor.score import score  # noqa: PLC0415 - a contributor's measure

    result = score(folder).as_json()
    if as_json:
        print(as_text(result))
    else:
        for case in result["missed"]:
            print(f"{case['case']}: expected {case['expected']}, got {', '.join(case['got']) or 'nothing'}")
        keys = ("cases", "top1", "top3", "family", "wrong_first")
        print("  ".join(f"{k} {result[k]}" for k in keys))
    return 4 if result["missed"] else 0
