"""What each GPU's memory is taken by: measured by NVML, split by the plan where one is known.

Measured and planned are never mixed in one number: the plan splits what our service takes, and the
measured use stands beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from checks.planner.units import GIB, gib
from checks.report.collected import entries, number

__all__ = ["PARTS", "memory_of"]

#: The planner's terms that are a part of their own; all the others are the engine's working memory.
PARTS = {
    "target weights": "weights",
    "draft weights": "draft",
    "KV cache": "kv",
    "CUDA graphs": "graphs",
}
_LABEL = {
    "weights": "target weights",
    "draft": "draft weights",
    "kv": "KV cache",
    "graphs": "CUDA graphs",
    "runtime": "context, buffers, warm-up",
}
OURS = "eyas-"


def memory_of(facts: Mapping[str, Any], plan: Mapping[str, Any] | None, no_plan: str) -> list[dict[str, Any]]:
    """One entry a GPU of one host's probe. ``why`` names what is not known, by key; sizes are GiB.

    ``plan`` is a plan's document, ``no_plan`` why there is none.
    """
    host = str(facts.get("host") or "")
    gpus = facts.get("gpus")
    if not isinstance(gpus, list):
        return [{"host": host, "gpu": None, "why": {"gpus": _why(gpus, "not probed")}}]
    return [_gpu(host, g, plan, no_plan) for g in gpus if isinstance(g, Mapping)]


def _gpu(host: str, g: Mapping[str, Any], plan: Mapping[str, Any] | None, no_plan: str) -> dict[str, Any]:
    why: dict[str, str] = {}
    total, used = (_number(g, f"memory_{key}", why) for key in ("total", "used"))
    ours, others = _processes(g, why)
    if g.get("error"):  # a card that gives no answer: one reason for all
        why.clear()
        why["memory"] = str(g["error"])
    entry: dict[str, Any] = {
        "host": host,
        "gpu": g["index"] if isinstance(g.get("index"), int) else None,
        "name": g.get("name") if isinstance(g.get("name"), str) else None,
        "total_gib": _gib(total),
        "used_gib": _gib(used),
        "free_gib": _gib(total - used) if total is not None and used is not None else None,
        "deployment": next((p["unit"] for p in ours), "").removeprefix(OURS).removesuffix(".service") or None,
        "segments": [],
        "terms": [],
        "why": why,
    }
    if total is not None:
        entry["segments"] = _segments(entry, ours, others, used, plan, no_plan)
    return entry


def _segments(
    entry: dict[str, Any],
    ours: Sequence[Mapping[str, Any]],
    others: Sequence[Mapping[str, Any]],
    used: int | None,
    plan: Mapping[str, Any] | None,
    no_plan: str,
) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    why = entry["why"]
    mine = sum(int(p["bytes"]) for p in ours)
    if ours and plan is not None:
        entry["terms"] = [
            {"name": str(t.get("name")), "gib": size, "band_gib": number(t.get("band_gib")) or 0.0,
             "source": str(t.get("source") or "")}
            for t in entries(plan.get("terms")) if (size := number(t.get("gib"))) is not None
        ]  # fmt: skip
        parts += _planned(entry["terms"])
        why.pop("split", None)
    elif ours:
        why["split"] = no_plan
        parts.append(_part("service", "service, not split", gib(mine), "measured"))
    other = sum(int(p["bytes"]) for p in others)
    if other:
        names = ", ".join(dict.fromkeys(str(p.get("name") or "?") for p in others))
        parts.append(_part("other", f"other processes: {names[:120]}", gib(other), "measured"))
    if used is None:
        return parts
    untold = used / GIB - sum(p["gib"] for p in parts)
    if untold > 0.05 or "processes" in why:
        parts.append(_part("untold", _untold(entry, ours), round(max(untold, 0.0), 2), "measured"))
    left = entry["total_gib"] - sum(p["gib"] for p in parts)
    parts.append(
        _part("free", "free", round(max(left, 0.0), 2), "measured" if not entry["terms"] else "rest")
    )
    return parts


def _untold(entry: Mapping[str, Any], ours: Sequence[Mapping[str, Any]]) -> str:
    if "processes" in entry["why"]:
        return "in use, by whom is not known"
    return "in use beyond the plan" if ours and entry["terms"] else "driver and what no process owns"


def _planned(terms: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[str, float] = {}
    for t in terms:
        kind = PARTS.get(t["name"], "runtime")
        sums[kind] = sums.get(kind, 0.0) + t["gib"]
    return [_part(kind, _LABEL[kind], round(sums[kind], 2), "planned") for kind in _LABEL if kind in sums]


def _part(kind: str, label: str, size: float, how: str) -> dict[str, Any]:
    return {"kind": kind, "label": label, "gib": size, "how": how}


def _processes(
    g: Mapping[str, Any], why: dict[str, str]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Ours and the others', those whose size is known; the reason goes to ``why`` when some are not."""
    listed = g.get("processes")
    if not isinstance(listed, list):
        why["processes"] = _why(listed, "not probed")
        return [], []
    known = [p for p in listed if isinstance(p, Mapping) and isinstance(p.get("bytes"), int)]
    if len(known) < len(listed):
        why["processes"] = "the size of a process could not be read"
    ours = [p for p in known if str(p.get("unit") or "").startswith(OURS)]
    return ours, [p for p in known if p not in ours]


def _number(g: Mapping[str, Any], key: str, why: dict[str, str]) -> int | None:
    value = g.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    why[key.removeprefix("memory_")] = _why(value, "not probed")
    return None


def _why(node: Any, otherwise: str) -> str:
    return str(node["missing"]) if isinstance(node, Mapping) and "missing" in node else otherwise


def _gib(value: int | None) -> float | None:
    return None if value is None else gib(value)
