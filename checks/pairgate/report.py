"""A verdict for a reader: one JSON document, or a page in which every refusal says what to do."""

import json

from rich.console import Console
from rich.text import Text

from checks.pairgate.catalogue import roles_of
from checks.pairgate.model import PairVerdict, PairWant, Reason

__all__ = ["show"]

_STYLE = {"ok": "bold green", "warn": "bold yellow", "refuse": "bold red"}


def show(verdict: PairVerdict, target: str, draft: str, want: PairWant, *, as_json: bool) -> None:
    """Print to stdout. Plain text without a terminal; NO_COLOR is honoured by rich."""
    if as_json:
        print(json.dumps(verdict.to_json(), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text.assemble((verdict.verdict, _STYLE[verdict.verdict]), f"  {draft} for {target}"))
    engine = roles_of(want.engine, want.version).name
    console.print(Text(f"method {verdict.method}, {engine}, tensor parallel {want.tensor_parallel}"))
    for reason in verdict.reasons:
        _show_reason(console, reason)
    for note in verdict.notes:
        console.print(Text(f"\nnote: {note}"))
    if verdict.alternatives:
        console.print(Text("\nwhat fits this target:"))
        for other in verdict.alternatives:
            line = f"  {other['method']:<12} {other['draft'] or '-'}"
            console.print(Text(line + (f"  ({other['note']})" if other["note"] else "")))


def _show_reason(console: Console, reason: Reason) -> None:
    console.print(Text.assemble("\n", (reason.severity, _STYLE[reason.severity]), f"  {reason.slug}"))
    console.print(Text(f"  {reason.field}: target {reason.target}, draft {reason.draft}"))
    console.print(Text(f"  {reason.why}"))
    if reason.error:
        console.print(Text(f'  later, from the engine: "{reason.error}"'))
    console.print(Text(f"  instead: {reason.instead}"))
