"""What the operator sees of a rollout: the plan before the yes, the recap after."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from provision.rollout.batches import batches
from provision.rollout.ends import Ending
from provision.rollout.plan import Member, Plan

__all__ = ["estimated_minutes", "show_plan", "show_recap"]

#: Assumed where nothing was measured: a gigabit link, reading from disk, a start with its gate; of wheels,
#: which unpack to some four times as much, what an installation takes in.
LINK_BYTES_S = 110e6
INSTALL_BYTES_S = 25e6
READ_BYTES_S = 1e9
START_S = 90
COLORS = {"done": "green", "ok": "green", "untouched": "dim", "unreachable": "yellow"}


def estimated_minutes(plan: Plan) -> tuple[float, float]:
    """(before anything is switched, switching), from sizes; a first start that compiles takes longer."""
    members = [m for m in plan.members if m.state in {"pending", "prepare"}]
    moved = [
        (m.weight_bytes + m.wheel_bytes) / LINK_BYTES_S + m.wheel_bytes / INSTALL_BYTES_S for m in members
    ]
    first = max(moved, default=0)
    moving = [m for m in members if m.moves]
    each = max((START_S + m.model_bytes / READ_BYTES_S for m in moving), default=0)
    rounds = sum(
        math.ceil(len(b) / plan.options.forks)
        for b in batches(moving, plan.options.canary, plan.options.serial)
    )
    pauses = max(0, rounds - 1) * plan.options.pause_s
    return first / 60, (rounds * each + pauses) / 60


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number else "-"


def show_plan(plan: Plan, out: Console, mask: Callable[[str], str]) -> None:
    table = Table("HOST", "STATE", "NOW", "THEN", "TO MOVE", "CHANGES", box=None, pad_edge=False)
    for m in plan.members:
        cells = [
            m.name,
            m.state,
            (m.former or "-")[:16],
            m.want or "-",
            _bytes(m.weight_bytes + m.wheel_bytes),
        ]
        table.add_row(*(escape(c) for c in cells), escape(mask(_changes(m))))
    out.print(table)
    moving = [m for m in plan.members if m.moves]
    if not moving:
        out.print("nothing to switch")
        return
    made = batches(moving, plan.options.canary, plan.options.serial)
    out.print("order: " + " | ".join(", ".join(m.name for m in b) for b in made), markup=False)
    total = sum(m.weight_bytes + m.wheel_bytes for m in plan.members)
    first, then = estimated_minutes(plan)
    out.print(
        f"to move: {_bytes(total)}; estimated {first:.0f} min before, {then:.0f} min to switch;"
        f" stops after {plan.options.max_fail} failed"
    )


def _changes(m: Member) -> str:
    if m.why:
        return m.why + (f" (next: {m.hint})" if m.hint else "")
    words = [re.split(r"[: ]", title, maxsplit=1)[0] for title in m.changes]
    return ", ".join(dict.fromkeys(words)) or "already so"


def show_recap(
    plan: Plan, ending: Ending, journal: str, *, as_json: bool, mask: Callable[[str], str]
) -> None:
    if as_json:
        print(mask(json.dumps(_document(plan, ending, journal))))
        return
    out = Console(highlight=False, soft_wrap=True)
    for r in ending.results.values():
        color = COLORS.get(r.status, "red")
        out.print(f"{escape(r.host):<20} [{color}]{r.status}[/]  release={r.release or '-'} {r.seconds} s")
        for text in (r.why, *r.notes):
            if text:
                out.print(f"  {escape(mask(text))}")
        if r.hint:
            out.print(f"  [bold]next:[/] {escape(mask(r.hint))}")
    if ending.stopped:
        out.print(
            f"[red]stopped[/]: {escape(ending.stopped)}; hosts not named above as done were not touched"
        )
    out.print(f"[dim]journal: {escape(journal)}[/]")


def _document(plan: Plan, ending: Ending, journal: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "task": plan.kind,
        "id": plan.id,
        "hosts": [vars(r) for r in ending.results.values()],
        "stopped": ending.stopped,
        "journal": journal,
        "exit_code": ending.exit_code,
    }
