"""From collected documents to the report's tree: what the JSON holds and the page shows.

A number that nobody could read is null, and ``why`` beside it gives the reason under the same key.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from checks.doctor.redact import Redactor
from checks.report.benches import bench_of, reviewed, trends_of
from checks.report.collected import Collected, Node, entries, number, texts
from checks.report.memory import memory_of

__all__ = ["SECTIONS", "assemble"]

#: Section -> the kinds of document that fill it, and the command that makes one.
SECTIONS = {
    "fleet": (("status",), "invoke status --limit PATTERN --json"),
    "findings": (("doctor",), "invoke doctor --host PATTERN --json"),
    "drift": (("drift", "status"), "invoke drift --limit PATTERN --json"),
    "memory": (("facts", "one host's facts"), "invoke facts --host PATTERN --json"),
    "benches": (("bench",), "invoke bench --host HOST --json"),
    "trends": (("review", "bench"), "invoke review --limit PATTERN --json"),
}
_NUMBERS = ("gpu_percent", "kv_usage", "running", "waiting", "acceptance")
_SEVERITIES = ("error", "warning", "info")
#: A log line longer than this is shown cut; the file it came from has it whole.
LONGEST = 1200


def assemble(found: Collected, *, made_at: str, version: str, scope: str = "") -> dict[str, Any]:
    """The whole report. ``made_at`` is ISO 8601; ``scope`` says which hosts or folder it is about."""
    lost = _unreachable(found)
    rows = sorted(map(_row, _last(found.rows, "host", "deployment")), key=_worst_first)
    findings = _findings(found.diagnoses)
    tree = {
        "schema": 1,
        "kind": "report",
        "made_at": made_at,
        "eyas": version,
        "scope": scope,
        "summary": _summary(rows, lost, findings, found),
        "fleet": rows,
        "unreachable": lost,
        "findings": findings,
        "unseen": _unseen(found.diagnoses),
        "drift": _drift(found.drifts, rows),
        "memory": _memory(found),
        "benches": [bench_of(b) for b in _newest(found)],
        "trends": [*reviewed(found.reviews), *trends_of(found.benches)],
        "absent": _absent(found),
        "sources": found.sources,
        "unread": found.unread,
    }
    masked: dict[str, Any] = _masked(tree, Redactor())
    return masked


def _masked(node: Any, redactor: Redactor) -> Any:
    """The same tree without secrets, in values and in keys."""
    if isinstance(node, str):
        return redactor.text(node)
    if isinstance(node, Mapping):
        return {redactor.text(str(k)): _masked(v, redactor) for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [_masked(v, redactor) for v in node]
    return node


def _last(entries: Iterable[Node], *keys: str) -> list[Node]:
    """The last entry of each name."""
    return list({tuple(str(e.get(k)) for k in keys): e for e in entries}.values())


def _unreachable(found: Collected) -> list[dict[str, str]]:
    """Hosts that gave no answer, once each; one that another document did see is not among them."""
    told = {str(u["host"]): u for u in found.unreachable}
    return [
        {"host": h, "error": str(u.get("error") or "no reason given"), "hint": str(u.get("hint") or "")}
        for h, u in told.items()
    ]


# ---- fleet


def _row(r: Node) -> dict[str, Any]:
    row: dict[str, Any] = {k: _text(r.get(k)) for k in ("host", "deployment", "release", "state")}
    row["ready"] = r.get("ready") is True
    row["drift"] = texts(r.get("drift"))
    row["why"] = {}
    for key in _NUMBERS:
        row[key] = number(r.get(key))
        if row[key] is None:
            row["why"][key] = _reason(key, row)
    return row


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _reason(key: str, row: Mapping[str, Any]) -> str:
    if key == "gpu_percent":
        return "no card gave its utilisation"
    if row["deployment"] is None:
        return "nothing is served"
    if not row["ready"]:
        return f"the engine is not serving: {row['state'] or 'state unknown'}"
    if key == "acceptance":
        return "nothing was drafted yet, or it serves without speculation"
    return "not among the engine's metrics"


def _worst_first(row: Mapping[str, Any]) -> tuple[int, str, str]:
    rank = 2 if row["ready"] and not row["drift"] else 1 if row["ready"] or not row["release"] else 0
    return rank, row["host"] or "", row["deployment"] or ""


def _summary(
    rows: Sequence[Mapping[str, Any]],
    lost: Sequence[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    found: Collected,
) -> dict[str, Any]:
    """Counts; null where nobody asked, which is not the same as none."""
    hosts = {r["host"] for r in rows} | {u["host"] for u in lost}
    failed = {r["host"] for r in rows if r["release"] and not r["ready"]}
    serving = {r["host"] for r in rows if r["ready"]} - failed
    roots = [f for f in findings if f["root"]]
    asked = "doctor" in found.looked
    return {
        "hosts": len(hosts) if "status" in found.looked else None,
        "serving": len(serving) if "status" in found.looked else None,
        "not_serving": len(failed) if "status" in found.looked else None,
        "unreachable": len(lost),
        **{f"{s}s": sum(f["severity"] == s for f in roots) if asked else None for s in _SEVERITIES[:2]},
    }


# ---- findings


def _findings(diagnoses: Iterable[Node]) -> list[dict[str, Any]]:
    """Root causes first, errors first; the same cause on several hosts is one finding with all of them."""
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for f in (f for d in diagnoses for f in entries(d["findings"])):
        one = _finding(f)
        key = tuple(str(one[k]) for k in ("code", "severity", "root", "title", "fix"))
        kept = merged.setdefault(key, one)
        if kept is not one:
            kept["hosts"] += [h for h in one["hosts"] if h not in kept["hosts"]]
            kept["evidence"] += [e for e in one["evidence"] if e not in kept["evidence"]]
    order = {s: n for n, s in enumerate(_SEVERITIES)}
    return sorted(merged.values(), key=lambda f: (not f["root"], order.get(f["severity"], 9), f["code"]))


def _finding(f: Node) -> dict[str, Any]:
    host = str(f.get("host") or "")
    severity = str(f.get("severity"))
    evidence = entries(f.get("evidence"))
    return {
        "code": str(f.get("code") or ""),
        "slug": str(f.get("slug") or ""),
        "severity": severity if severity in _SEVERITIES else "info",
        "title": str(f.get("title") or ""),
        "cause": str(f.get("cause") or ""),
        "confidence": str(f.get("confidence") or ""),
        "root": f.get("root") is True,
        "hosts": [host] if host else [],
        "evidence": [
            {"host": host, "source": str(e.get("source") or ""), "line": number(e.get("line")),
             "text": _cut(str(e.get("text") or ""))} for e in evidence
        ],
        "fix": [
            {k: str(x.get(k) or "") for k in ("change", "value", "command", "why")}
            for x in entries(f.get("fix"))
        ],
    }  # fmt: skip


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text) - LONGEST} more characters)"


def _unseen(diagnoses: Iterable[Node]) -> list[dict[str, str]]:
    """Checks that could not look, or broke: each is a hole in the report, said once a host."""
    told = [
        _hole(o)
        for d in diagnoses
        for o in entries(d["outcomes"])
        if o.get("status") in ("unknown", "crashed")
    ]
    return list({(u["check"], u["host"], u["why"]): u for u in told}.values())


def _hole(o: Node) -> dict[str, str]:
    data = o.get("data")
    return {
        "check": str(o.get("check")),
        "status": str(o.get("status")),
        "why": str(o.get("why") or "no reason given"),
        "host": str(data.get("host") or "") if isinstance(data, Mapping) else "",
    }


# ---- drift, memory, gaps


def _drift(drifts: Iterable[Node], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    told = [
        {
            "host": str(d.get("host")),
            **{k: texts(d.get(k)) for k in ("differences", "pending", "unseen")},
            "outlier": str(d.get("outlier") or ""),
        }
        for d in _last(drifts, "host")
    ]
    known = {d["host"] for d in told}
    told += [
        {"host": r["host"], "differences": [f"{r['deployment']}: {', '.join(r['drift'])}"], "pending": [],
         "unseen": [], "outlier": ""}
        for r in rows if r["drift"] and r["host"] not in known
    ]  # fmt: skip
    return [d for d in told if d["differences"] or d["pending"] or d["unseen"] or d["outlier"]]


def _memory(found: Collected) -> list[dict[str, Any]]:
    plans = {str(p.get("host")): p for p in found.plans if p.get("host")}
    entries = []
    for facts in _last(found.facts, "host"):
        plan = plans.get(str(facts.get("host")))
        why = "no plan of this host: invoke plan --host NAME --json"
        stopped = plan is not None and not plan.get("starts")
        if plan is not None and stopped:
            why = f"the planner says it does not start: {plan.get('reason')}"
        if plan is not None and plan.get("why"):
            why, stopped = str(plan["why"]), True
        entries += memory_of(facts, None if stopped else plan, why)
    return entries


def _newest(found: Collected) -> list[Any]:
    """The newest bench of each host and deployment, in the order of hosts."""
    latest = {(b.host, b.deployment): b for b in sorted(found.benches, key=lambda b: b.taken_at)}
    return [latest[key] for key in sorted(latest)]


def _absent(found: Collected) -> dict[str, str]:
    """Sections that nobody looked at, with the command that fills each."""
    return {
        name: f"not looked at; {command}"
        for name, (kinds, command) in SECTIONS.items()
        if not found.looked & set(kinds)
    }
