"""The KV cache: none left, too small for the length, memory of others charged to it."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose
from checks.doctor.rules.phases import settings
from checks.doctor.scan import Hit

__all__ = ["RULES"]


def _kv_none(case: Case) -> Iterator[Candidate]:
    hit = case.first("kv.none") or case.first("kv.negative")
    if hit is None:
        return
    values = settings(case) | _kv_budget(case)
    shared, evidence = _neighbour(case, hit)
    if shared:
        values |= shared
        yield Candidate(
            "kv-cache-no-memory-cotenant", 3, case.evidence(hit) + evidence, values, hit.line, hit.start
        )
    if case.spec and not shared and case.said(r"without (?:spec|draft)|works without|no error without"):
        yield Candidate("oom-spec-draft", 2, case.evidence(hit), values, hit.line, hit.start)
    yield Candidate("kv-cache-no-memory", 3, case.evidence(hit), values, hit.line, hit.start)


def _kv_budget(case: Case) -> dict[str, str]:
    """Utilization that would give a KV cache, from what the engine printed."""
    values: dict[str, str] = {}
    util = case.util or 0.9
    if case.util:
        values["util"] = f"{util:g}"
    if util < 0.93:
        values["util_up"] = f"{min(0.95, util + 0.1):.2f}"
    take, budget = case.last("weights.take"), case.last("budget")
    if take and budget:
        total = float(budget.groups["total"])
        used = sum(float(take.groups[k]) for k in ("weights", "nontorch", "peak"))
        need = (used + 1.0) / total
        if need <= 0.97:
            values |= {
                "util_needed": f"{need + 0.01:.2f}",
                "budget_gib": budget.groups["budget"],
                "used_gib": f"{used:.1f}",
            }
    return values


def _neighbour(case: Case, hit: Hit) -> tuple[dict[str, str], tuple[object, ...]]:
    """Values and evidence when memory of another process was charged to this engine."""
    for line in case.all("kv.profile"):
        if line.start == hit.start and float(line.groups["nontorch"]) > 3.0:
            return {"other_gib": line.groups["nontorch"]}, case.evidence(line)
    held = _probe_others(case)
    if held > 1.0:
        return {"other_gib": f"{held:.1f}"}, (
            case.fact("gpus.processes", f"{held:.1f} GiB held by other processes"),
        )
    said = case.said(prose("neighbour"))
    if said:
        return {"neighbour": said[0]}, (case.fact("text", said[0]),)
    return {}, ()


def _probe_others(case: Case) -> float:
    """GiB that other compute processes hold on the fullest GPU."""
    gpus = case.known("gpus")
    sums = [
        sum(p.get("bytes") or 0 for p in g.get("processes", []) if isinstance(p, dict))
        for g in (gpus if isinstance(gpus, list) else [])
        if isinstance(g, dict) and isinstance(g.get("processes", []), list)
    ]
    return max(sums, default=0) / 2**30


def _kv_small(case: Case) -> Iterator[Candidate]:
    """The engine's own estimate is the number to use."""
    for hit in case.all("kv-too-small") + case.all("kv-too-small-v0") + case.all("kv-too-small-cut"):
        values: dict[str, str] = dict(hit.groups)
        estimate = re.search(r"estimated maximum model length is (\d+)", hit.text)
        later = next((h for h in case.all("kv.estimate") if h.start == hit.start), None)
        if estimate:
            values["fit_len"] = estimate[1]
        elif later:
            values["fit_len"] = later.groups["fit_len"]
        elif "need" in values and float(values["need"]) > 0 and "asked_len" in values:
            fit = int(int(values["asked_len"]) * float(values["have"]) / float(values["need"]))
            values["fit_len"] = str(max(16, fit // 16 * 16))
        if "need" in values:
            values["missing_gib"] = f"{float(values['need']) - float(values['have']):.2f}"
        strength = 3 if "asked_len" in values else 2
        yield Candidate("kv-cache-too-small", strength, case.evidence(hit), values, hit.line, hit.start)


def _occupied(case: Case) -> Iterator[Candidate]:
    for hit in case.all("free-less-than-util"):
        free, total, want = (float(hit.groups[k]) for k in ("free_gib", "total_gib", "want_gib"))
        fit = int(free / total * 100) / 100 if total else 0.0
        values = {**hit.groups, "util_fit": f"{fit:.2f}", "held_gib": f"{total - free:.2f}"}
        if total and (total - free) > max(2.0, 0.12 * total) and hit.groups.get("kind") == "GPU":
            values["held_much"] = "1"
        values["short_gib"] = f"{want - free:.2f}"
        yield Candidate("gpu-memory-occupied", 3, case.evidence(hit), values, hit.line, hit.start)


def _explicit_kv(case: Case) -> Iterator[Candidate]:
    """An explicit KV size and then an allocation failure: say what was free."""
    told = case.last("kv.explicit")
    hit = case.first("oom")
    if told is None or hit is None or hit.line < told.line:
        return
    free = re.search(r"Initial free memory ([\d.]+) GiB", told.text)
    load = case.last("load.end")
    asked = told.groups.get("asked", told.groups.get("asked2", ""))
    values: dict[str, str] = {}
    if free and load and asked:
        room = float(free[1]) - float(next(iter(load.groups.values()))) - 2.0
        values = {"kv_free": f"{room:.0f}", "kv_asked": asked, "kv_fit": f"{max(1, int(room))}G"}
    yield Candidate("oom-kv-allocation", 3, case.evidence(told, hit), values, hit.line, hit.start)


def _kv_room(case: Case) -> Iterator[Candidate]:
    for hit in case.all("kv-requested-more"):
        values = {**hit.groups, "kv_fit": f"{max(1, int(float(hit.groups['kv_free']) * 0.6))}G"}
        yield Candidate("oom-kv-allocation", 3, case.evidence(hit), values, hit.line, hit.start)


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "kv-none": _kv_none,
    "kv-small": _kv_small,
    "kv-explicit": _explicit_kv,
    "kv-room": _kv_room,
    "occupied": _occupied,
}
