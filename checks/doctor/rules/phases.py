"""Where a start stood when memory ran out: frames first, then the last mark; the numbers of the message."""

import re

from checks.doctor.case import Case, gib
from checks.doctor.patterns import phases
from checks.doctor.scan import Hit

__all__ = ["framed", "frames_of", "lines_near", "numbers", "phase", "settings"]

NEAR_FRAMES = 70


def framed(hit: Hit) -> bool:
    """Its own frames name the phase, not only the marks before it."""
    frames = frames_of(hit)
    return any(pattern.search(frames) for _, pattern in phases())


def phase(case: Case, hit: Hit) -> str:
    """Where the start stood when this out-of-memory came: frames first, then the last mark."""
    frames = frames_of(hit)
    for name, pattern in phases():
        if pattern.search(frames):
            return name
    return _by_marks(case, hit)


def frames_of(hit: Hit) -> str:
    """The traceback around the hit as lower-case text: this process only where it is named."""
    before = [c for c in hit.before if not hit.proc or not c.proc or c.proc == hit.proc][-NEAR_FRAMES:]
    after = [c for c in hit.after if not hit.proc or not c.proc or c.proc == hit.proc][:12]
    lines = [*(c.text for c in before if _is_frame(c.text)), hit.text[:600]]
    own = [c.text for c in after if _is_frame(c.text)]
    if not any(_is_frame(c.text) for c in before):
        lines += own
    return "\n".join(lines).lower()


def lines_near(hit: Hit) -> str:
    return "\n".join(c.text for c in (*hit.before[-8:], *hit.after[:4])).lower()


def _is_frame(text: str) -> bool:
    return (
        'File "' in text
        or text.startswith(("return ", "buffer ="))
        or "pin_memory" in text
        or " in compute_" in text
    )


def _by_marks(case: Case, hit: Hit) -> str:
    if case.before("ready", hit):
        return "run"
    for mark, name in (("graph.draft", "spec-start"), ("graph.begin", "graph")):
        if case.before(mark, hit) and not case.before("graph.end", hit):
            return name
    if case.before("graph.failed", hit):
        return "graph"
    if case.before("kv.size", hit):
        return "after-kv"
    if case.before("draft.load", hit):
        return "spec-start"
    if case.before("load.end", hit):
        return "profile"
    return "weights" if case.before("load.begin", hit) else ""


def numbers(case: Case, hit: Hit) -> dict[str, str]:
    """What the message and the settings give: free, tried, neighbours, next values."""
    values: dict[str, str] = {}
    text = hit.text
    for name, pattern in (
        ("tried", r"[Tt]ried to allocate ([\d.]+ [KMG]iB)"),
        ("free", r"of which ([\d.]+ [KMG]iB) is free|([\d.]+ [KMG]iB) free"),
        ("total", r"total capacit\w+ of ([\d.]+ [KMG]iB)|; ([\d.]+ [KMG]iB) total capacity"),
        ("allocated", r"Of the allocated memory ([\d.]+ [KMG]iB)|([\d.]+ [KMG]iB) already allocated"),
    ):
        found = re.search(pattern, text)
        if found:
            values[name] = next(g for g in found.groups() if g)
    others = re.findall(r"Process (\d+) has ([\d.]+ [KMG]iB) memory in use", text)
    if others:
        held = sum(gib(size) for _, size in others)
        values |= {"other_gib": f"{held:.2f}", "all_pids": ", ".join(pid for pid, _ in others)}
    return values | settings(case)


def settings(case: Case) -> dict[str, str]:
    """Next values of the knobs, from the present ones."""
    values: dict[str, str] = {}
    util = case.util or 0.9
    values["util_next"] = f"{max(0.5, util - 0.05 if util <= 0.95 else 0.9):.2f}"
    seqs = case.number("seqs")
    if seqs > 16:
        values["seqs_next"] = str(max(16, min(64, seqs // 4)))
    elif not seqs:
        values["seqs_next"] = "64"
    fraction = case.option("fraction")
    if case.sglang:
        values["fraction_next"] = f"{max(0.4, (float(fraction) if fraction else 0.88) - 0.08):.2f}"
    return values | _wider(case)


def _wider(case: Case) -> dict[str, str]:
    """The next tensor parallel size that heads and GPUs allow."""
    now = case.tp or 1
    heads = case.number("heads")
    fits = [n for n in (2, 4, 8, 16) if n > now and (not heads or heads % n == 0)]
    if case.gpus:
        fits = [n for n in fits if n <= case.gpus]
    return {"tp_next": str(fits[0]), "tp_valid": ", ".join(map(str, fits))} if fits and case.gpus else {}
