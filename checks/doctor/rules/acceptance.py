"""What only numbers tell of speculation: acceptance, window, gain, load, silence."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose
from checks.doctor.rules.draft import draft_window
from checks.doctor.scan import Hit

__all__ = ["RULES"]

LOW_RATE = 0.2
LOW_LENGTH = 1.35
GOOD_RATE = 0.4


def _acceptance(case: Case) -> Iterator[Candidate]:
    """What only numbers tell: near-zero, short window, no gain, too much load."""
    rate, length, lines = _rates(case)
    window, served = draft_window(case), case.option("max_model_len") or _served(case)
    short = bool(window and served and int(served) > int(window)) or _falls(case)
    low = (rate is not None and rate < LOW_RATE) or (
        rate is None and length is not None and length < LOW_LENGTH
    )
    said_low = bool(
        case.said(r"acceptance[^\n]{0,40}(?:drop|collaps|fall|declin|near[- ]zero|very low|\b0\.0\d)")
    )
    values = (
        {"rate": f"{rate:.1%}" if rate is not None else f"{length:.2f} tokens a step"}
        if rate is not None or length is not None
        else {}
    )
    if (low or said_low or _falls(case)) and short:
        extra = {"draft_window": window, "served_len": served} if window and served else {}
        yield Candidate("spec-draft-context-short", 3, lines, extra)
    if low:
        yield Candidate("spec-low-acceptance", 3 if _drafted_enough(case) else 2, lines, values)
    else:
        yield from _gain(case, rate, lines)


def _drafted_enough(case: Case) -> bool:
    return not (case.metrics and case.metrics.drafted is not None and case.metrics.drafted < 100)


def _served(case: Case) -> str:
    found = case.said(r"(?:prompts?|inputs?|context|served|requests)[^\n]{0,30}?(\d{1,3})k\b")
    if found:
        return str(int(found[1]) * 1024)
    line = case.last("draft.shorter")
    return next((line.groups[k] for k in ("served", "served2") if line and line.groups.get(k)), "")


def _falls(case: Case) -> bool:
    """Acceptance by context length: fine when short, gone when long."""
    values = list(case.metrics.by_context.values()) if case.metrics else []
    rates = [v for v in values if v <= 1.0] if any(v <= 1.0 for v in values) else [v - 1.0 for v in values]
    return len(rates) >= 2 and max(rates) >= 2.5 * max(min(rates), 0.001) and min(rates) < 0.35


def _rates(case: Case) -> tuple[float | None, float | None, tuple[object, ...]]:
    """Acceptance rate and mean length with their evidence; metrics before log lines."""
    if case.metrics and (case.metrics.rate is not None or case.metrics.length is not None):
        text = f"acceptance rate {case.metrics.rate}, mean length {case.metrics.length}"
        return case.metrics.rate, case.metrics.length, (case.fact("metrics", text),)
    said = case.said(r"accept\w*[ _-]?(?:rate|ratio)?[^\n\d.]{1,12}(0?\.\d+|\d{1,2}(?:\.\d+)? ?%)")
    if said and not case.has("spec.metrics"):
        number = float(said[1].rstrip(" %")) * (0.01 if "%" in said[1] else 1.0)
        return number, None, (case.fact("text", said[0]),)
    lines = case.all("spec.metrics")
    rates = [r for r in (_rate(h) for h in lines) if r is not None]
    lengths = [float(h.groups["length"]) for h in lines if "length" in h.groups]
    rate = sorted(rates)[len(rates) // 2] if rates else None
    length = sorted(lengths)[len(lengths) // 2] if lengths else None
    return rate, length, case.evidence(*lines[-2:])


def _rate(hit: Hit) -> float | None:
    for key, scale in (("rate", 1.0), ("rate2", 1.0), ("pct", 0.01)):
        if hit.groups.get(key):
            return float(hit.groups[key]) * scale
    return None


def _gain(case: Case, rate: float | None, lines: tuple[object, ...]) -> Iterator[Candidate]:
    pairs = case.metrics.pairs if case.metrics else ()
    lost = [p for p in pairs if p.gain <= 1.05]
    loaded = not case.said(prose("alone")) and case.said(
        r"concurren|qps|rps|under load|batch size|clients|simultaneous|requests at once|load:"
    )
    at_load = [
        p for p in lost if re.search(r"(?:concurren|batch|load|qps|(?:^|\.)c|bs)\w*?_?(\d{1,4})", p.where)
    ]
    running = _running(case)
    if lost and (at_load or (loaded and not re.search(r"tp\d|\btp", lost[0].where))):
        worst = min(lost, key=lambda p: p.gain)
        yield Candidate("spec-slow-under-load", 3, (case.fact("metrics", f"{worst}"),), _load_values(running))
    elif lost:
        worst = min(lost, key=lambda p: p.gain)
        values = {"with_spec": f"{worst.with_spec:g}", "without_spec": f"{worst.without:g}"}
        yield Candidate("spec-no-gain", 3, (case.fact("metrics", f"{worst}"),), values)
    elif (
        rate is not None
        and rate >= GOOD_RATE
        and loaded
        and (
            running >= 4
            or case.said(r"slow|worse|loss|loses|(?:lower|less|below)[^\n]{0,30}(?:than|without)")
        )
    ):
        yield Candidate("spec-slow-under-load", 2, lines, _load_values(running))
    hit = case.first("spec.nogain")
    if hit or (
        case.spec and not lost and case.said(r"no (?:gain|speed-?up|benefit)|not faster|slower (?:than|with)")
    ):
        cause = "spec-slow-under-load" if loaded else "spec-no-gain"
        yield Candidate(
            cause, 2, case.evidence(hit) if hit else (case.fact("text", "no gain"),), _load_values(running)
        )


def _running(case: Case) -> float:
    seen = [int(h.groups["n"]) for h in case.all("running")]
    return max([*seen, int(case.metrics.running or 0) if case.metrics else 0], default=0)


def _load_values(running: float) -> dict[str, str]:
    return {"running": f"{running:g}", "cutoff": f"{max(2, int(running) // 2)}"} if running else {}


def _silent(case: Case) -> Iterator[Candidate]:
    """Speculation asked for, tokens made, no drafts."""
    page = case.metrics
    if page is None or not page.page or not case.spec:
        return
    made = page.numbers.get("vllm:generation_tokens_total", 0) or page.numbers.get(
        "sglang:generation_tokens_total", 0
    )
    if made > 200 and not page.drafted and page.rate is None:
        yield Candidate(
            "spec-silently-off", 2, (case.fact("metrics", f"{made:g} tokens generated, no drafts"),)
        )


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "spec-acceptance": _acceptance,
    "spec-silent": _silent,
}
