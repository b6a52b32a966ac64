"""How a plan is shown: a bar per GPU on a terminal, plain lines otherwise."""

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from checks.planner.result import Plan
from checks.planner.truth import Row
from checks.planner.units import GIB, gib

__all__ = ["show_plan", "show_truth"]

_WIDTH = 64
_COLOURS = ("grey50", "blue", "cyan", "magenta", "yellow", "green", "red", "bright_black")
_VERDICTS = {"fits": "green", "tight": "yellow", "does-not-fit": "red"}


def show_plan(plan: Plan, console: Console, *, title: str = "") -> None:
    """Print one plan. Without a terminal the same numbers come as plain lines."""
    if console.is_terminal:
        console.print(Group(*_rich(plan, title)))
    else:
        for line in _plain(plan, title):
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def _headline(plan: Plan) -> str:
    s = plan.scenario
    where = f"{s.tp} x {s.device or 'GPU'} {gib(s.device_total)} GiB"
    return f"{s.engine} {s.version or ''} on {where}: {plan.verdict}".replace("  ", " ")


def _numbers(plan: Plan) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if plan.kv_tokens is not None and plan.max_len:
        found.append(
            ("KV cache", f"{plan.kv_tokens:,} tokens, {plan.concurrency or 0:.2f} x {plan.max_len:,}")
        )
    if plan.device_peak is not None:
        found.append(
            ("after start", f"{gib(plan.device_peak)} +/- {gib(plan.band)} GiB, {gib(plan.free or 0)} free")
        )
    if plan.stop is not None:
        found.append(("stops at", f"{plan.stop.stage}: {plan.stop.reason}"))
        found.append(("", plan.stop.text))
    return found


def _plain(plan: Plan, title: str) -> list[str]:
    lines = [title] if title else []
    lines.append(_headline(plan))
    for t in plan.terms:
        mark = "measured" if t.measured else f"+/- {gib(t.band):.2f}"
        lines.append(f"  {t.name:<28} {gib(t.nbytes):>8.2f} GiB  {mark}")
    lines += [f"  {name:<28} {text}" for name, text in _numbers(plan)]
    return lines + [f"  note: {n}" for n in plan.notes]


def _rich(plan: Plan, title: str) -> list[RenderableType]:
    head = Text(f"{title}  " if title else "")
    head.append(_headline(plan), style=f"bold {_VERDICTS[plan.verdict]}")
    table = Table(box=None, padding=(0, 2), show_header=False)
    for colour, t in zip(_COLOURS * 3, plan.terms, strict=False):
        mark = "measured" if t.measured else f"+/- {gib(t.band):.2f}"
        table.add_row(
            Text("█", style=colour), t.name, f"{gib(t.nbytes):.2f} GiB", mark, Text(t.source, style="dim")
        )
    for name, text in _numbers(plan):
        table.add_row("", name, text)
    notes = [Text(f"note: {n}", style="dim") for n in plan.notes]
    return [head, *[_bar(plan, rank) for rank in range(plan.scenario.tp)], table, *notes]


def _bar(plan: Plan, rank: int) -> Text:
    total = max(plan.scenario.device_total, sum(t.nbytes for t in plan.terms))
    bar = Text(f"GPU {rank} ")
    drawn = 0
    for colour, t in zip(_COLOURS * 3, plan.terms, strict=False):
        cells = round(t.nbytes / total * _WIDTH)
        bar.append("█" * cells, style=colour)
        drawn += cells
    bar.append("░" * max(0, _WIDTH - drawn), style="dim")
    return bar.append(f" {plan.scenario.device_total / GIB:.1f} GiB")


def show_truth(rows: Iterable[Row], console: Console) -> None:
    """The table of predicted against measured."""
    table = Table(
        "start", "weights GiB", "err", "KV tokens", "err", "peak GiB", "err GiB", "starts", "ok", box=None
    )
    for row in rows:
        table.add_row(*_truth_cells(row))
    console.print(table)


def _truth_cells(row: Row) -> list[str]:
    p, m = row.plan, row.measured
    used = m.get("device_used_mib_after_start")
    return [
        row.name,
        _pair(None if p.weights is None else gib(p.weights), m.get("model_loading_gib")),
        _percent(row.weights_error),
        _pair(p.kv_tokens, m.get("kv_tokens")),
        _percent(row.tokens_error),
        _pair(
            None if p.device_peak is None else gib(p.device_peak),
            round(max(used) / 1024, 2) if used else None,
        ),
        "" if row.peak_error is None else f"{row.peak_error:+.2f}",
        _outcome(row),
        "yes" if row.within else "NO",
    ]


def _outcome(row: Row) -> str:
    said = "yes" if row.plan.starts else str(row.plan.reason)
    started = row.measured.get("started")
    was = "cut off" if started is None else "yes" if started else str(row.measured.get("reason") or "no")
    return said if said == was else f"{said} / {was}"


def _pair(predicted: object, measured: object) -> str:
    shown = ["-" if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in (predicted, measured)]
    return " / ".join(shown)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"
