"""A bench for people: cells, the decision table, the verdict."""

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from checks.bench.model import AgainstBaseline, BenchResult, Cell, Spread, StrategyRun
from checks.bench.verdict import by_concurrency

__all__ = ["render", "render_against", "show"]


def show(result: BenchResult, out: Console) -> None:
    out.print(render(result))


def render(r: BenchResult) -> RenderableType:
    return Group(*_parts(r))


def _parts(r: BenchResult) -> Iterator[RenderableType]:
    where = f"{r.tensor_parallel} x {r.gpus[0]}" if r.gpus else f"{r.device} build"
    engine = f"{r.engine} {r.engine_version}, {where}"
    yield f"[bold]{escape(r.host)}[/] {escape(r.deployment)}: {escape(r.target)} by {escape(engine)}"
    yield f"{r.prompt_tokens} prompt and {r.output_tokens} output tokens, {r.seconds:.0f} s"
    for note in r.notes:
        yield f"[dim]{escape(note)}[/]"
    yield _cells(r)
    if r.speedups:
        yield _decision(r)
    if any(c.acceptance for s in r.strategies for c in s.cells):
        yield _domains(r)
    yield from (f"{escape(s.label)}: [red]{escape(s.error)}[/]" for s in r.strategies if s.error)
    yield from _losslessness(r.strategies)
    yield from _why_missing(r)
    if r.verdict:
        sure = "" if r.verdict.certain else " [yellow](can't tell for certain)[/]"
        yield f"[bold]verdict[/]: {escape(r.verdict.text)}{sure}"
    elif len(r.strategies) > 1:
        yield "[bold]verdict[/]: none, there was nothing to compare with"


def _cells(r: BenchResult) -> Table:
    columns = ("STRATEGY", "WORKLOAD", "AT ONCE", "TOKENS/S", "A REQUEST", "TTFT P50", "P95 MS", "ITL MS")
    table = _table(*columns, "TOKENS/STEP", "KV %", "PREEMPTED", "W")
    for s in r.strategies:
        for c in s.cells:
            table.add_row(*_row(s, c))
    return table


def _row(s: StrategyRun, c: Cell) -> tuple[str, ...]:
    return (
        s.label,
        c.workload,
        str(c.concurrency),
        _sure(c.tokens_per_s_total) + ("" if c.settled or c.repeats < 2 else " ?"),
        _one(c.tokens_per_s_request, 1),
        _one(c.ttft_p50_ms, 0),
        _one(c.ttft_p95_ms, 0),
        _one(c.itl_ms, 2),
        f"{c.acceptance.mean_length:.2f}" if c.acceptance else "-",
        "-" if c.kv_usage_peak is None else f"{100 * c.kv_usage_peak:.0f}",
        "-" if c.preemptions is None else str(c.preemptions),
        "-" if c.gpu_power_w is None else f"{sum(c.gpu_power_w):.0f}",
    )


def _sure(s: Spread) -> str:
    return f"{s.median:.1f}" + (f" ±{s.relative:.1%}" if s.n > 1 else " once")


def _one(s: Spread | None, digits: int) -> str:
    return "-" if s is None else f"{s.median:.{digits}f}"


def _decision(r: BenchResult) -> Table:
    """Speedup by concurrency, memory, KV tokens: what a strategy costs beside what it gives."""
    at = sorted({s.concurrency for s in r.speedups})
    table = _table("SPEEDUP OVER NONE", *(f"AT {c}" for c in at), "MEMORY MIB", "KV TOKENS", "SAME OUTPUT")
    plain = r.run("none")
    for s in r.strategies:
        points = by_concurrency(r.speedups, s.label)
        if points:
            cells = (_ratio(points.get(c)) for c in at)
            table.add_row(s.label, *cells, _memory(s, plain), _kv(s, plain), _same(s))
    return table


def _ratio(s: Spread | None) -> str:
    if s is None:
        return "-"
    told = f"{s.median:.2f}"
    return told if s.n > 1 and not s.low <= 1 <= s.high else f"{told} ?"


def _memory(s: StrategyRun, plain: StrategyRun | None) -> str:
    if not s.gpu_memory_mib or plain is None or not plain.gpu_memory_mib:
        return "-"
    return f"{max(s.gpu_memory_mib) - max(plain.gpu_memory_mib):+d}"


def _kv(s: StrategyRun, plain: StrategyRun | None) -> str:
    if s.kv_tokens is None or plain is None or plain.kv_tokens is None:
        return "-"
    return f"{s.kv_tokens - plain.kv_tokens:+,}"


def _same(s: StrategyRun) -> str:
    same = s.lossless.same if s.lossless else None
    return {True: "yes", False: "no", None: "-"}[same]


def _domains(r: BenchResult) -> Table:
    """Acceptance by workload at the smallest concurrency that each was measured at."""
    names = list(dict.fromkeys(c.workload for s in r.strategies for c in s.cells))
    table = _table("ACCEPTED", *(n.upper() for n in names), "BY POSITION")
    for s in r.strategies:
        first = {c.workload: c for c in sorted(s.cells, key=lambda c: -c.concurrency)}
        if not any(c.acceptance for c in first.values()):
            continue
        by_position = next((c.acceptance.per_position for c in first.values() if c.acceptance), ())
        shares = " ".join(f"{p:.0%}" for p in by_position) or "-"
        table.add_row(s.label, *(_accepted(first.get(n)) for n in names), shares)
    return table


def _accepted(c: Cell | None) -> str:
    if c is None or c.acceptance is None or c.acceptance.rate is None:
        return "-"
    return f"{c.acceptance.rate:.0%}"


def _losslessness(runs: Sequence[StrategyRun]) -> Iterator[str]:
    for s in runs:
        told = s.lossless
        if told is None or told.same is None:
            continue
        if told.same:
            yield f"{escape(s.label)}: output at temperature 0 is that of none ({told.compared} answers)"
            continue
        yield (
            f"{escape(s.label)}: [yellow]{told.differing} of {told.compared} answers differ[/],"
            f" the first after {told.at} characters:"
            f" {escape(repr(told.expected))} became {escape(repr(told.got))}"
        )
        yield f"  {escape(told.why)}"


def _why_missing(r: BenchResult) -> Iterator[str]:
    """Each reason once: what a dash means."""
    told: dict[str, set[str]] = {}
    for s in r.strategies:
        for missing in (s.missing, *(c.missing for c in s.cells)):
            for name, why in missing.items():
                if name != "acceptance":
                    told.setdefault(why, set()).add(name)
    for why, names in told.items():
        yield f"[dim]{', '.join(sorted(names))} not measured: {escape(why)}[/]"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right", overflow="fold")
    return table


def render_against(host: str, found: AgainstBaseline) -> str:
    colour = {"pass": "green", "fail": "red", "can't tell": "yellow"}[found.answer]
    return f"[bold]{escape(host)}[/] [{colour}]{found.answer}[/]: {escape(found.text)}"
