"""A report as the JSON document and as text; a code's page for ``invoke explain``."""

import json
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape

from checks.doctor.catalogue import Catalogue, Code
from checks.doctor.model import Report
from checks.outcome import Finding, Status
from inventory.errors import UsageError

__all__ = ["code_page", "code_rows", "combine", "exit_code", "fix_step", "print_report", "report_json"]

_COLOUR = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def exit_code(report: Report) -> int:
    """0 clean, 4 errors found, 3 nothing could be looked at, 1 a check crashed and no error was found."""
    if report.errors:
        return 4
    if any(o.status is Status.CRASHED for o in report.outcomes):
        return 1
    looked = any(o.status in {Status.OK, Status.FINDINGS} for o in report.outcomes)
    return 0 if looked else 3


def combine(reports: Iterable[Report]) -> Report:
    """Reports of several hosts as one: findings by rank within a host, hosts in the order given."""
    every = list(reports)
    if len(every) == 1:
        return every[0]
    findings = tuple(f for r in every for f in r.findings)
    ordered = tuple(sorted(findings, key=lambda f: not f.root))
    verdict = "\n".join(r.verdict for r in every)
    return Report(ordered, tuple(o for r in every for o in r.outcomes), verdict)


def report_json(report: Report) -> dict[str, Any]:
    """The documented form, schema 1. Findings are sorted, root causes first."""
    return {
        "schema": 1,
        "findings": [_finding(f) for f in report.findings],
        "outcomes": [
            {"check": o.check, "status": o.status.value, "why": o.why, **({"data": o.data} if o.data else {})}
            for o in report.outcomes
        ],
        "verdict": report.verdict,
    }


def _finding(f: Finding) -> dict[str, Any]:
    return {
        "code": f.code,
        "slug": f.slug,
        "severity": f.severity.value,
        "host": f.host,
        "title": f.title,
        "evidence": [{"source": e.source, "line": e.line, "text": e.text} for e in f.evidence],
        "cause": f.cause,
        "fix": [{"change": x.change, "value": x.value, "command": x.command, "why": x.why} for x in f.fix],
        "confidence": f.confidence,
        "root": f.root,
        "explains": list(f.explains),
    }


def print_report(report: Report, console: Console) -> None:
    """The same for people: the root causes whole, what they explain in one line each."""
    for f in report.findings:
        if f.root:
            _print_root(f, console)
    rest = [f for f in report.findings if not f.root]
    if rest:
        console.print("[dim]also seen, explained by the above or weaker:[/dim]")
    for f in rest:
        console.print(f"  {f.code} {f.slug} ({f.confidence})", style="dim", markup=False, highlight=False)
    for o in report.outcomes:
        if o.status is Status.CRASHED:
            where = f" on {o.data['host']}" if o.data.get("host") else ""
            text = (
                f"[bold red]crashed[/bold red] {escape(o.check + where)}: {escape(o.why)} (please report it)"
            )
            console.print(text, highlight=False, soft_wrap=True)
    console.print(escape(report.verdict), highlight=False, soft_wrap=True)


def _print_root(f: Finding, console: Console) -> None:
    colour = _COLOUR[f.severity.value]
    where = f" on {f.host}" if f.host else ""
    head = (
        f"[{colour}]{f.code} {f.slug}[/{colour}] {escape(f.title)}{escape(where)} ({f.confidence} confidence)"
    )
    console.print(head, highlight=False, soft_wrap=True)
    for e in f.evidence:
        line = f":{e.line}" if e.line is not None else ""
        console.print(
            f"  seen  {e.source}{line}: {e.text[:240]}", markup=False, highlight=False, soft_wrap=True
        )
    console.print(f"  why   {f.cause}", markup=False, highlight=False, soft_wrap=True)
    for n, x in enumerate(f.fix, 1):
        text = f"  fix {n} {x.change}: {x.value}  ({x.why})" if x.why else f"  fix {n} {x.change}: {x.value}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        if x.command:
            console.print(f"        $ {x.command}", markup=False, highlight=False, soft_wrap=True)
    console.print()


def code_rows(book: Catalogue) -> list[dict[str, str]]:
    """Every code for ``--list``."""
    return [
        {"code": c.code, "slug": c.slug, "family": c.family, "severity": c.severity.value, "title": c.title}
        for c in sorted(book.codes.values(), key=lambda c: c.code)
    ]


def code_page(book: Catalogue, name: str) -> tuple[Code, str]:
    """A code's text. Raises UsageError with the nearest names for an unknown one."""
    code = book.find(name.strip())
    if code is None:
        near = book.nearest(name)
        raise UsageError(
            f"no code or cause named {name!r}",
            hint=f"nearest: {', '.join(near)}" if near else "invoke doctor --list",
        )
    steps = "\n".join(fix_step(n, s.change, s.value, s.command, s.why) for n, s in enumerate(code.fix, 1))
    text = (
        f"{code.code} {code.slug} ({code.severity.value}): {code.title}\n\n"
        f"What     {code.what}\nWhy      {code.why}\nExample  {code.example}\nFix\n{steps}"
    )
    return code, text


def fix_step(n: int, change: str, *texts: str) -> str:
    """One numbered step; values that the doctor computes appear as <name>."""
    named = (re.sub(r"(?<!\{)\{(\w+)\}(?!\})", r"<\1>", t) for t in texts)
    value, command, why = (t.replace("{{", "{").replace("}}", "}") for t in named)
    lines = [f"  {n}. {change}: {value}" if value else f"  {n}. {change}"]
    lines += [f"     $ {command}"] if command else []
    lines += [f"     {why}"] if why else []
    return "\n".join(lines)


def as_text(tree: dict[str, Any]) -> str:
    """One JSON document."""
    return json.dumps(tree, ensure_ascii=False)
