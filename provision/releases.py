"""`invoke releases` and `invoke audit`: what is on the hosts, and who made what the served one when."""

import json
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from inventory.errors import EyasError
from inventory.model import Host
from provision.audit import read_audit, served_for_good
from provision.gather import gather, tell_lost
from provision.observe import probe
from provision.rollout.record import Record, records
from provision.run import Flags
from provision.shell import Shell

__all__ = ["releases_on", "show_audit", "show_releases"]


def releases_on(shell: Shell) -> list[dict[str, Any]]:
    """Every release of a host; ``role`` is current, previous or "", ``served_at`` its last switch."""
    facts = probe(shell)
    current = facts.value("eyas.current", dict) or {}
    audit = served_for_good(read_audit(shell))
    out = []
    for r in facts.value("eyas.releases", list) or []:
        name, rid = r.get("deployment", "?"), r["id"]
        times = [e["time"] for e in audit if e["release"] == rid]
        out.append(
            {
                "deployment": name,
                "id": rid,
                "engine": f"{r.get('engine', '?')} {r.get('engine_version', '?')}",
                "complete": r.get("complete") is True,
                "proven": bool(r.get("proven")),
                "role": "current" if current.get(name) == rid else "",
                "served_at": max(times, default=None),
                "lock": (r.get("lock") or {}).get("id", "")[:16],
                "weights": [w.get("path", "") for w in (r.get("weights") or {}).values()],
            }
        )
    _mark_previous(out)
    return sorted(out, key=lambda r: (r["deployment"], -(r["served_at"] or 0)))


def _mark_previous(found: list[dict[str, Any]]) -> None:
    """The last proven one served before the current one, of each deployment."""
    for name in {r["deployment"] for r in found}:
        past = [
            r for r in found if r["deployment"] == name and not r["role"] and r["proven"] and r["served_at"]
        ]
        if past:
            max(past, key=lambda r: r["served_at"])["role"] = "previous"


def show_releases(hosts: Sequence[Host], flags: Flags) -> int:
    answers = gather(hosts, releases_on, flags)
    lost, code = tell_lost(answers)
    good = [(h, a) for h, a in answers if not isinstance(a, EyasError)]
    if flags.as_json:
        listed = [{"host": h.name, "releases": a} for h, a in good]
        print(json.dumps({"schema": 1, "hosts": listed, "unreachable": lost}))
        return code
    rows = [
        [
            h.name,
            r["deployment"],
            r["id"],
            r["role"] or "-",
            r["engine"],
            _yes(r["proven"]),
            _when(r["served_at"]),
        ]
        for h, a in good
        for r in a
    ]
    _print(rows, "HOST", "DEPLOYMENT", "RELEASE", "ROLE", "ENGINE", "PROVEN", "LAST SERVED")
    return code


def show_audit(hosts: Sequence[Host], flags: Flags, *, last: int) -> int:
    """Switches as the hosts noted them, newest last; and the rollouts this operator's machine knows."""
    answers = gather(hosts, read_audit, flags)
    lost, code = tell_lost(answers)
    events = [{"host": h.name, **e} for h, a in answers if not isinstance(a, EyasError) for e in a]
    events = sorted(events, key=lambda e: e["time"])[-last:] if last else []
    runs = [_run(Record(p)) for p in records()[-last:] if last]
    if flags.as_json:
        print(json.dumps({"schema": 1, "events": events, "rollouts": runs, "unreachable": lost}))
        return code
    rows = [[_when(e["time"]), e["who"], e["host"], e["deployment"], e["release"]] for e in events]
    _print(rows, "WHEN", "WHO", "HOST", "DEPLOYMENT", "SERVED RELEASE")
    if runs:
        Console().print()
        _print(
            [[r["id"], r["kind"], str(r["hosts"]), r["state"]] for r in runs],
            "ROLLOUT",
            "KIND",
            "HOSTS",
            "ENDED",
        )
    return code


def _run(record: Record) -> dict[str, Any]:
    plan = record.plan
    ends = [e for e in record.events if e["event"] == "end"]
    state = f"exit {ends[-1]['exit_code']}" if ends and record.finished else "unfinished: rollout --resume"
    return {
        "id": plan.id,
        "kind": plan.kind,
        "hosts": len(plan.members),
        "state": state,
        "phases": record.phases,
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _when(stamp: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp)) if stamp else "-"


def _print(rows: Sequence[Sequence[str]], *columns: str) -> None:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    console = Console(soft_wrap=True) if Console().is_terminal else Console(width=10_000)
    console.print(table)
