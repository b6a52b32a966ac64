"""What the operator sees of a run: progress, changes, findings, a recap per host; or one JSON document."""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from provision.converge import HostReport

__all__ = ["Progress", "document", "exit_code", "show_reports"]

SYMBOL = {"ok": "[green]ok[/]", "changed": "[yellow]changed[/]", "pending": "[yellow]pending[/]"}


class Progress:
    """Lines on stderr, each with its host; fast repeats (bytes of a copy) are thinned out to one a second."""

    def __init__(self, mask: Callable[[str], str], *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._mask, self._quiet = mask, quiet
        self._last: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def for_host(self, name: str) -> Callable[[str], None]:
        return lambda text: self.say(name, text)

    def say(self, host: str, text: str) -> None:
        if self._quiet:
            return
        kind, now = text.split(":", 1)[0], time.monotonic()
        with self._lock:
            then, last_kind = self._last.get(host, (0.0, ""))
            if kind == last_kind and now - then < 1.0 and ":" in text:
                return
            self._last[host] = (now, kind)
            self._console.print(
                f"[dim]{time.strftime('%H:%M:%S')}[/] [bold]{escape(host)}[/] {escape(self._mask(text))}"
            )


def document(reports: list[HostReport], task: str) -> dict[str, Any]:
    return {"schema": 1, "task": task, "hosts": [_host(r) for r in reports], "exit_code": exit_code(reports)}


def _host(r: HostReport) -> dict[str, Any]:
    return {**asdict(r), "changed": r.changed}


def exit_code(reports: list[HostReport], *, detailed: bool = False) -> int:
    """The worst host decides; pending changes count only when asked for."""
    worst = max((r.exit_code for r in reports), default=0)
    if worst == 0 and detailed and any(r.status == "pending" for r in reports):
        return 8
    return worst


def show_reports(
    reports: list[HostReport], task: str, *, as_json: bool, diff: bool, mask: Callable[[str], str]
) -> None:
    if as_json:
        sys.stdout.write(mask(json.dumps(document(reports, task), indent=2)) + "\n")
        return
    out = Console(highlight=False, soft_wrap=True)
    for r in reports:
        _details(out, r, diff, mask)
    out.print()
    for r in reports:
        status = SYMBOL.get(r.status, f"[red]{r.status}[/]")
        line = f"{escape(r.host):<20} {status}  changed={r.changed} release={r.release or '-'} {r.seconds} s"
        out.print(line)
        if r.error:
            out.print(f"  {escape(mask(r.error))}")
            if r.hint:
                out.print(f"  [bold]next:[/] {escape(mask(r.hint))}")


def _details(out: Console, r: HostReport, diff: bool, mask: Callable[[str], str]) -> None:
    for note in r.notes:
        out.print(f"[dim]{escape(r.host)}: {escape(note)}[/]")
    for f in r.findings:
        out.print(f"{escape(r.host)}: {f.severity.value} {f.code} {f.slug}: {escape(f.cause)}")
        for fix in f.fix[:1]:
            out.print(f"    {escape(fix.command or fix.change)}")
    for text in r.unseen:
        out.print(f"{escape(r.host)}: [yellow]not looked[/] {escape(text)}")
    for c in r.changes:
        took = f" ({c['seconds']} s)" if c.get("seconds") is not None else ""
        verb = "changed" if c["done"] else "not done" if r.error else "would change"
        out.print(f"{escape(r.host)}: {verb}: {escape(mask(c['title']))}{took}")
        if diff and c["diff"]:
            out.print(escape(mask(c["diff"])), soft_wrap=True)
    if r.proof:
        told = {k: v for k, v in r.proof.items() if k not in {"outputs", "samples"}}
        out.print(f"{escape(r.host)}: proof {escape(json.dumps(told))}")
