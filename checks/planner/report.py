"""How a plan is shown: a bar per GPU on a terminal, plain lines otherwise."""

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from checks.planner.advice import Advice
from checks.planner.inverse import Capacity, CardFit
from checks.planner.result import Plan, Term
from checks.planner.truth import Row
from checks.planner.units import GIB, gib

__all__ = ["show_advice", "show_capacity", "show_cards", "show_plan", "show_truth"]

_WIDTH = 64
_COLOURS = ("grey50", "blue", "cyan", "magenta", "yellow", "green", "red", "bright_black")
_VERDICTS = {"fits": "green", "tight": "yellow", "does-not-fit": "red"}


def show_plan(plan: Plan, console: Console, *, title: str = "", notes: tuple[str, ...] = ()) -> None:
    """Print one plan. Without a terminal the same numbers come as plain lines."""
    if console.is_terminal:
        console.print(Group(*_rich(plan, title)))
    else:
        _lines(console, _plain(plan, title))
    _lines(console, [f"  note: {n}" for n in (*plan.notes, *notes)])


def show_advice(advice: Sequence[Advice], console: Console) -> None:
    """The changes that help, each with what it gives and what it costs."""
    for a in advice:
        tokens = f"{a.plan.kv_tokens:,} KV tokens" if a.plan.kv_tokens else "no KV cache"
        outcome = f"{a.plan.verdict}, {tokens}, {gib(a.plan.free or 0)} GiB free"
        _lines(console, [f"  change {a.change} to {a.value}: {outcome}", f"    costs: {a.cost}"])


def show_capacity(capacity: Capacity, console: Console) -> None:
    """Whether the requests asked for fit, and how far each could go."""
    asked = f"{capacity.requests} requests of {capacity.context:,} tokens"
    _lines(
        console,
        [
            f"  {asked}: {'yes' if capacity.holds else 'no'}",
            f"  at {capacity.context:,} tokens: {capacity.most_requests} requests at once",
            f"  with {capacity.requests} requests: {capacity.longest_context:,} tokens each",
        ],
    )


def show_cards(fits: Sequence[CardFit], console: Console) -> None:
    """Which cards would do, the smallest first."""
    lines = [f"  {f.gpus} x {f.card}: {f.plan.kv_tokens or 0:,} KV tokens" for f in fits]
    _lines(
        console, ["cards that would do:", *lines] if lines else ["no known card would do, up to 8 of them"]
    )


def _lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _headline(plan: Plan) -> str:
    s = plan.scenario
    where = f"{s.tp} x {s.device or 'GPU'} {gib(s.device_total)} GiB"
    return f"{s.engine} {s.release.version} on {where}: {plan.verdict}"


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
    return lines + [f"  {name:<28} {text}" for name, text in _numbers(plan)]


def _rich(plan: Plan, title: str) -> list[RenderableType]:
    head = Text(f"{title}  " if title else "")
    head.append(_headline(plan), style=f"bold {_VERDICTS[plan.verdict]}")
    numbers = [Text(f"  {name:<28}{text}") for name, text in _numbers(plan)]
    terms = [_term(colour, t) for colour, t in zip(_COLOURS * 3, plan.terms, strict=False)]
    return [head, *[_bar(plan, rank) for rank in range(plan.scenario.tp)], *terms, *numbers]


def _term(colour: str, t: Term) -> Text:
    """One line; on a narrow terminal the source at its end gives way."""
    mark = "measured" if t.measured else f"+/- {gib(t.band):.2f}"
    line = Text("█ ", style=colour, no_wrap=True, overflow="ellipsis")
    line.append(f"{t.name:<28}{gib(t.nbytes):>8.2f} GiB  {mark:<9} ", style="default")
    return line.append(t.source, style="dim")


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
