"""The report's tree as one HTML page: everything inline, no script, nothing fetched, every value escaped.

The policy allows this very style sheet by its hash and nothing else, so that a value which would slip
through as markup could neither run, nor load, nor restyle anything.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from checks.report.charts import HEIGHT, WIDTH, Chart, by_concurrency, over_time, slices

__all__ = ["render"]

_COLUMNS = (
    ("Host", False), ("Deployment", False), ("Release", False), ("State", False), ("GPU", True),
    ("KV cache", True), ("Running", True), ("Waiting", True), ("Accepted", True), ("Drift", False),
)  # fmt: skip
_NUMBERS = (
    ("gpu_percent", "GPU"), ("kv_usage", "KV cache"), ("running", "Running"), ("waiting", "Waiting"),
    ("acceptance", "Accepted"),
)  # fmt: skip
_TONES = {"error": "err", "warning": "warn", "info": "info"}
_TITLES = {
    "fleet": "Fleet", "findings": "Findings", "drift": "Drift", "memory": "GPU memory",
    "benches": "Throughput", "trends": "Over time",
}  # fmt: skip


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("checks.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )


def render(r: Mapping[str, Any]) -> str:
    """The whole file. ``r`` is what `assemble` gave."""
    css = _templates().get_template("page.css.j2").render()
    roots = [f for f in r["findings"] if f["root"]]
    return _templates().get_template("page.html.j2").render(
        r=r, css=Markup(css),  # noqa: S704 - our own file, without a value of the tree
 policy=_policy(css), title=f"eyas: {_headline(r)}", headline=_headline(r),
        made=r["made_at"][:16].replace("T", " ") + " UTC", tiles=_tiles(r["summary"]),
        sections=list(_TITLES.items()), columns=_COLUMNS, tones=_TONES,
        fleet=[*map(_lost_row, r["unreachable"]), *map(_fleet_row, r["fleet"])],
        roots=roots, others=[f for f in r["findings"] if not f["root"]],
        gpus=[_gpu(g) for g in r["memory"]],
        benches=[_bench(b) for b in r["benches"]], trends=[_trend(t) for t in r["trends"]],
        width=WIDTH, height=HEIGHT,
    )  # fmt: skip


def _policy(css: str) -> str:
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


# ---- the head


def _headline(r: Mapping[str, Any]) -> str:
    s = r["summary"]
    parts = []
    if s["hosts"] is not None:
        parts.append(f"{s['serving']} of {_count(s['hosts'], 'host')} serving")
    elif s["unreachable"]:
        parts.append(f"{_count(s['unreachable'], 'host')} not reached")
    if s["errors"] is not None:
        parts.append(
            f"{_count(s['errors'], 'error')}, {_count(s['warnings'], 'warning')}"
            if s["errors"] or s["warnings"]
            else "nothing found"
        )
    if not parts and r["benches"]:
        parts.append(f"{_count(len(r['benches']), 'bench', 'benches')}")
    return "; ".join(parts) or "Fleet report"


def _count(n: int, one: str, several: str = "") -> str:
    return f"{n} {one if n == 1 else several or one + 's'}"


def _tiles(s: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A number in its colour only where it is not 0; "not looked at" where nobody asked."""
    wanted = (
        ("Hosts", "hosts", ""), ("Serving", "serving", "ok"), ("Not serving", "not_serving", "err"),
        ("Not reached", "unreachable", "err"), ("Errors", "errors", "err"), ("Warnings", "warnings", "warn"),
    )  # fmt: skip
    return [
        {
            "label": label,
            "value": "not looked at" if s[key] is None else s[key],
            "tone": tone if s[key] else "",
        }
        for label, key, tone in wanted
    ]


# ---- fleet


def _cell(label: str, text: str = "", **more: Any) -> dict[str, Any]:
    return {
        "label": label,
        "text": text,
        "span": 1,
        "right": False,
        "tone": "",
        "why": "",
        "mono": False,
    } | more


def _lost_row(u: Mapping[str, str]) -> dict[str, Any]:
    state = _cell("State", "not reached", tone="err")
    why = f"{u['error']}" + (f"; next: {u['hint']}" if u["hint"] else "")
    nothing = _cell("Deployment", why="not reached", span=2)
    return {"host": u["host"], "cells": [nothing, state, _cell("Numbers", why=why, span=6)]}


def _fleet_row(row: Mapping[str, Any]) -> dict[str, Any]:
    idle = row["deployment"] is None
    tone = "idle" if idle else "err" if not row["ready"] else "warn" if row["drift"] else "ok"
    cells = [
        _cell("Deployment", row["deployment"] or "none"),
        _cell("Release", row["release"][:12], mono=True) if row["release"] else _cell("Release", "none"),
        _cell("State", row["state"] or "not known", tone=tone),
        *_numbers(row),
        _cell("Drift", ", ".join(row["drift"]) or "none"),
    ]
    return {"host": row["host"], "cells": cells}


def _numbers(row: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The numbers; neighbours that are not known for the same reason share one cell."""
    cells: list[dict[str, Any]] = []
    for key, label in _NUMBERS:
        if row[key] is not None:
            cells.append(_cell(label, _number(key, row[key]), right=True))
            continue
        why = row["why"].get(key, "")
        if cells and why and cells[-1]["why"] == why:
            cells[-1]["span"] += 1
            cells[-1]["label"] = f"{cells[-1]['label'].split(' to ')[0]} to {label}"
        else:
            cells.append(_cell(label, why=why or "no reason was given"))
    return cells


def _number(key: str, value: float) -> str:
    if key == "gpu_percent":
        return f"{value:.0f} %"
    return f"{value:.0f}" if key in {"running", "waiting"} else f"{value * 100:.0f} %"


# ---- memory


def _gpu(g: Mapping[str, Any]) -> dict[str, Any]:
    if g.get("total_gib") is None:
        return {
            "name": None,
            "used_gib": None,
            "total_gib": None,
            **g,
            "slices": [],
            "marker": None,
            "table": [],
        }
    parts = slices(g["segments"], g["total_gib"])
    whole = max(g["total_gib"], sum(s["gib"] for s in g["segments"]))
    marker = None if g["used_gib"] is None else round(1000 * g["used_gib"] / whole, 1)
    return {**g, "slices": parts if g["segments"] else [], "marker": marker, "table": _parts(g)}


def _parts(g: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The planner's own terms where there is a plan, else the segments; the total first."""
    rows = [{"label": "total", "gib": g["total_gib"], "band": "", "how": "measured, NVML"}]
    if g["used_gib"] is not None:
        rows.append({"label": "used", "gib": g["used_gib"], "band": "", "how": "measured, NVML"})
    planned = "planned: {}".format
    rows += [
        {"label": t["name"], "gib": t["gib"], "band": t["band_gib"], "how": planned(t["source"])}
        for t in g["terms"]
    ]  # fmt: skip
    how = {"measured": "measured, NVML", "rest": "the rest"}
    rows += [
        {"label": s["label"], "gib": s["gib"], "band": "", "how": how[s["how"]]}
        for s in g["segments"] if s["how"] in how
    ]  # fmt: skip
    return rows


# ---- benches


def _bench(b: Mapping[str, Any]) -> dict[str, Any]:
    pairs = [
        (
            by_concurrency(f"{w['workload']}: output", w["throughput"], unit="tokens/s"),
            by_concurrency(f"{w['workload']}: accepted", w["acceptance"], unit="of drafts", share=True),
        )
        for w in b["workloads"]
    ]
    table = [
        {"strategy": r["strategy"], "workload": r["workload"], "cells": _bench_cells(r)} for r in b["rows"]
    ]
    gaps = {
        f"{key.replace('_', ' ')}, {why}"
        for r in b["rows"]
        for key, why in r["why"].items()
        if r.get(key) is None
    }
    name, at, commit = b["target"].partition("@")
    return {
        **b,
        "short": f"{name}{at}{commit[:12]}",
        "pairs": _drawn(pairs),
        "table": table,
        "gaps": sorted(gaps),
    }


def _drawn(pairs: Iterable[tuple[Chart | None, ...]]) -> list[list[Chart]]:
    """Without the charts that have no point."""
    return [drawn for pair in pairs if (drawn := [c for c in pair if c is not None])]


def _bench_cells(r: Mapping[str, Any]) -> list[Any]:
    """Text, or ``{"why": ...}`` for what is not known."""
    found: list[Any] = [str(r["concurrency"])]
    found += [
        _interval(r[key], brackets=key == "tokens_per_s") if r[key] else {"why": r["why"][key]}
        for key in ("tokens_per_s", "tokens_per_s_request", "ttft_p50_ms", "ttft_p95_ms")
    ]
    for key, pattern in (
        ("acceptance", "{:.0%}"), ("mean_length", "{:.2f}"), ("kv_usage_peak", "{:.0%}"),
        ("gpu_memory_mib", "{:,}"), ("gpu_power_w", "{:,}"),
    ):  # fmt: skip
        found.append({"why": r["why"][key]} if r[key] is None else pattern.format(r[key]))
    return found


def _interval(s: Mapping[str, float], *, brackets: bool) -> str:
    text = f"{s['median']:,.0f}" if s["median"] >= 100 else f"{s['median']:.1f}"
    return f"{text} [{s['low']:,.0f}, {s['high']:,.0f}]" if brackets and s["high"] > s["low"] else text


#: Concurrencies have no colour of their own; they take those of the strategies, in this order.
_KINDS = ("eagle3", "eagle", "ngram", "draft_model", "none", "suffix")


def _trend(t: Mapping[str, Any]) -> dict[str, Any]:
    pairs = []
    for workload in dict.fromkeys(s["workload"] for s in t["series"]):
        series = [
            {
                "label": f"{s['concurrency']} at once" if s["concurrency"] else "review",
                "kind": _KINDS[n % len(_KINDS)],
                "points": s["points"],
            }
            for n, s in enumerate(x for x in t["series"] if x["workload"] == workload)
        ]
        pairs.append(
            (
                over_time(f"{workload}: output", series, "tokens_per_s", unit="tokens/s"),
                over_time(f"{workload}: accepted", series, "acceptance", unit="of drafts", share=True),
            )
        )
    return {**t, "pairs": _drawn(pairs), "rows": [_trend_row(s, p) for s in t["series"] for p in s["points"]]}


def _trend_row(s: Mapping[str, Any], p: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "at": p["at"],
        "workload": s["workload"],
        "concurrency": s["concurrency"],
        "tokens": None if p["tokens_per_s"] is None else f"{p['tokens_per_s']:,.0f}",
        "accepted": None if p["acceptance"] is None else f"{p['acceptance']:.0%}",
    }
