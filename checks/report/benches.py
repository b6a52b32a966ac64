"""Benches as the report shows them: one series a strategy for each workload, and how they move over time."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from checks.bench.model import BenchResult, Cell, Spread, StrategyRun
from checks.report.collected import entries, number

__all__ = ["bench_of", "reviewed", "trends_of"]


def bench_of(b: BenchResult) -> dict[str, Any]:
    """``workloads`` hold a series a strategy: points of [concurrency, median, low, high]."""
    cells = [(s, c) for s in b.strategies for c in s.cells]
    return {
        "host": b.host,
        "deployment": b.deployment,
        "taken_at": b.taken_at,
        "engine": f"{b.engine} {b.engine_version}",
        "target": b.target,
        "gpus": list(b.gpus),
        "machine": _machine(b),
        "tensor_parallel": b.tensor_parallel,
        "prompt_tokens": b.prompt_tokens,
        "output_tokens": b.output_tokens,
        "verdict": b.verdict.text if b.verdict else None,
        "certain": b.verdict.certain if b.verdict else None,
        "against_baseline": b.against_baseline.text if b.against_baseline else None,
        "workloads": [_workload(b, name) for name in dict.fromkeys(c.workload for _, c in cells)],
        "rows": [_row(s, c) for s, c in cells],
        "failed": [{"strategy": s.label, "why": s.error} for s in b.strategies if s.error],
        "lossless": [_lossless(s) for s in b.strategies if s.lossless is not None],
        "notes": list(b.notes),
        "why": {} if b.verdict else {"verdict": "one strategy was measured: nothing to compare"},
    }


def _machine(b: BenchResult) -> str:
    """``2x NVIDIA H200``; a CPU build is named as such, for its speed says nothing about a card."""
    if not b.gpus:
        return "CPU build" if b.device == "cpu" else "cards not known"
    return ", ".join(f"{b.gpus.count(name)}x {name}" for name in dict.fromkeys(b.gpus))


def _workload(b: BenchResult, name: str) -> dict[str, Any]:
    series, accepted = [], []
    for s in b.strategies:
        cells = sorted((c for c in s.cells if c.workload == name), key=lambda c: c.concurrency)
        if not cells:
            continue
        head = {"strategy": s.strategy, "label": s.label}
        series.append({**head, "points": [[c.concurrency, *_spread(c.tokens_per_s_total)] for c in cells]})
        drafted = [[c.concurrency, c.acceptance.rate] for c in cells if c.acceptance is not None]
        if drafted:
            accepted.append({**head, "points": [[n, rate, rate, rate] for n, rate in drafted]})
    return {"workload": name, "throughput": series, "acceptance": accepted}


def _spread(s: Spread) -> tuple[float, float, float]:
    return s.median, s.low, s.high


def _row(s: StrategyRun, c: Cell) -> dict[str, Any]:
    """One line of the table; what is None has its reason in ``why``."""
    row: dict[str, Any] = {
        "strategy": s.label,
        "workload": c.workload,
        "concurrency": c.concurrency,
        "tokens_per_s": _pair(c.tokens_per_s_total),
        "tokens_per_s_request": _pair(c.tokens_per_s_request),
        "ttft_p50_ms": _pair(c.ttft_p50_ms),
        "ttft_p95_ms": _pair(c.ttft_p95_ms),
        "itl_ms": _pair(c.itl_ms),
        "acceptance": c.acceptance.rate if c.acceptance else None,
        "mean_length": c.acceptance.mean_length if c.acceptance else None,
        "kv_usage_peak": c.kv_usage_peak,
        "gpu_memory_mib": max(c.gpu_memory_mib) if c.gpu_memory_mib else None,
        "gpu_power_w": round(sum(c.gpu_power_w)) if c.gpu_power_w else None,
        "settled": c.settled,
        "why": dict(c.missing),
    }
    drafts = "no drafts" if s.strategy == "none" else "the engine counted no draft"
    for key in ("acceptance", "mean_length"):
        if row[key] is None:
            row["why"].setdefault(key, c.missing.get("acceptance", drafts))
    for key, value in row.items():
        if value is None:
            row["why"].setdefault(key, "not measured")
    return row


def _pair(s: Spread | None) -> dict[str, float] | None:
    return None if s is None else {"median": s.median, "low": s.low, "high": s.high, "n": s.n}


def _lossless(s: StrategyRun) -> dict[str, Any]:
    told = s.lossless
    assert told is not None
    said = {True: "identical", False: "differs", None: "not compared"}[told.same]
    return {"strategy": s.label, "said": said, "compared": told.compared, "why": told.why}


def trends_of(benches: Iterable[BenchResult]) -> list[dict[str, Any]]:
    """Benches that may be compared (equal ``baseline_key``), over time; one point says nothing of a trend."""
    groups: dict[tuple[str, str, str], dict[str, BenchResult]] = {}
    for b in sorted(benches, key=lambda b: b.taken_at):
        groups.setdefault((b.host, b.deployment, b.baseline_key), {})[b.taken_at] = b
    return [
        _trend(host, deployment, list(several.values()))
        for (host, deployment, _), several in sorted(groups.items())
        if len(several) > 1
    ]


def _trend(host: str, deployment: str, several: list[BenchResult]) -> dict[str, Any]:
    """What is served (the first strategy): a series for each workload and concurrency of the last bench."""
    last = several[-1].strategies[0].cells if several[-1].strategies else ()
    series = [
        {
            "workload": cell.workload,
            "concurrency": cell.concurrency,
            "points": [_point(b, cell.workload, cell.concurrency) for b in several],
        }
        for cell in last
    ]
    return {"host": host, "deployment": deployment, "series": series, "answer": None}


def _point(b: BenchResult, workload: str, concurrency: int) -> dict[str, Any]:
    cell = b.strategies[0].cell(workload, concurrency) if b.strategies else None
    return {
        "at": b.taken_at,
        "tokens_per_s": cell.tokens_per_s_total.median if cell else None,
        "acceptance": cell.acceptance.rate if cell and cell.acceptance else None,
    }


def reviewed(hosts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The history that each host keeps of itself; a time when others' requests ran is a gap, not a speed."""
    found = []
    for h in hosts:
        for r in entries(h.get("reviews")):
            points = [p for e in entries(r.get("history")) if (p := _reviewed(e))]
            if not points:
                continue
            told = f"{r.get('answer')}: {r.get('text')}" if r.get("text") else None
            series = [{"workload": "review", "concurrency": None, "points": points}]
            where = {"host": str(h.get("host")), "deployment": str(r.get("deployment"))}
            found.append({**where, "series": series, "answer": told})
    return found


def _reviewed(e: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        at = datetime.fromtimestamp(number(e.get("time")) or -1, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    now = e.get("now") if isinstance(e.get("now"), Mapping) and not e.get("busy") else {}
    when = at.isoformat(timespec="seconds").replace("+00:00", "Z")
    return (
        {"at": when, **{k: number((now or {}).get(n)) for k, n in _REVIEW.items()}}
        if at.year > 1999
        else None
    )


_REVIEW = {"tokens_per_s": "tokens_per_s", "acceptance": "acceptance_rate"}
