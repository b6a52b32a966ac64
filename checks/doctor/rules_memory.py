"""Out of memory by phase and owner. The message is the same everywhere: frames and marks tell."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case, gib
from checks.doctor.model import Candidate
from checks.doctor.patterns import phases, prose
from checks.doctor.scan import Hit

__all__ = ["RULES", "phase"]

NEAR_FRAMES = 70


def phase(case: Case, hit: Hit) -> str:
    """Where the start stood when this out-of-memory came: frames first, then the last mark."""
    frames = _frames(hit)
    for name, pattern in phases():
        if pattern.search(frames):
            return name
    return _by_marks(case, hit)


def _frames(hit: Hit) -> str:
    """The traceback around the hit as lower-case text: this process only where it is named."""
    before = [c for c in hit.before if not hit.proc or not c.proc or c.proc == hit.proc][-NEAR_FRAMES:]
    after = [c for c in hit.after if not hit.proc or not c.proc or c.proc == hit.proc][:12]
    lines = [*(c.text for c in before if _is_frame(c.text)), hit.text[:600]]
    own = [c.text for c in after if _is_frame(c.text)]
    if not any(_is_frame(c.text) for c in before):
        lines += own
    return "\n".join(lines).lower()


def _near(hit: Hit) -> str:
    return "\n".join(c.text for c in (*hit.before[-8:], *hit.after[:4])).lower()


def _is_frame(text: str) -> bool:
    return (
        text.startswith(('File "', "return ", "buffer =")) or "pin_memory" in text or " in compute_" in text
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


def _numbers(case: Case, hit: Hit) -> dict[str, str]:
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


def _oom(case: Case) -> Iterator[Candidate]:
    for hit in case.all("oom"):
        if re.search(r"Failed to create unquantized|warming up (?:the )?(?:sampler|pooler)", hit.text):
            continue
        where = phase(case, hit)
        if "pin_memory" in _near(hit) and case.said(r"pinned|wsl|swap[-_]space|offload|local_cpu"):
            where = "pinned"
        values = _numbers(case, hit)
        for cause, strength in _causes(case, hit, where):
            extra = _weights_values(values) if cause == "oom-weights-load" else _spec_values(values)
            yield Candidate(cause, strength, case.evidence(hit), values | extra, hit.line, hit.start)


def _causes(case: Case, hit: Hit, where: str) -> Iterator[tuple[str, int]]:
    """Causes of one out-of-memory line by phase, the likeliest first."""
    if case.has("sgl.not-enough"):
        yield "oom-static-fraction-window", 3
    if where == "pinned":
        yield "pinned-memory-limit", 3
    elif where == "logprobs" or (where in {"run", "spec-run", ""} and case.said(r"logprobs")):
        yield "oom-runtime-logprobs", 3
    elif where == "logits" and _serving(case, hit):
        yield "oom-runtime-logprobs", 2
        yield "oom-runtime", 1
    elif where == "sampler-warmup":
        yield "oom-sampler-warmup", 3
    elif where == "spec-start":
        yield "oom-spec-draft", 3
    elif where == "spec-run":
        yield ("oom-spec-runtime" if _serving(case, hit) else "oom-spec-draft"), 3
        yield ("oom-spec-draft" if _serving(case, hit) else "oom-spec-runtime"), 1
    elif where == "kv":
        yield from _kv_phase(case)
    elif where == "weights":
        yield "oom-weights-load", 3
    elif where == "graph":
        yield "oom-cuda-graph-capture", 3
        if case.spec:
            yield "oom-spec-draft", 2
    else:
        yield from _unclear(case, hit, where)


def _serving(case: Case, hit: Hit) -> bool:
    """Requests were running: ready before, or frames and facts that only serving has."""
    if case.before("ready", hit):
        return True
    frames = _frames(hit)
    if re.search(r"profile_run|determine_|_dummy_run|initialize_|warm_?up|capture", frames):
        return False
    return bool(
        re.search(r"execute_model|run_batch|event_loop|step\b|verify|propose|rejection|forward", frames)
    ) or bool(case.said(prose("serving")))


def _kv_phase(case: Case) -> Iterator[tuple[str, int]]:
    if case.has("kv.explicit"):
        yield "oom-kv-allocation", 3
    elif case.spec:
        yield "oom-spec-draft", 2
        yield "oom-kv-allocation", 1
    else:
        yield ("oom-static-fraction-window" if case.sglang else "oom-kv-allocation"), 2


def _unclear(case: Case, hit: Hit, where: str) -> Iterator[tuple[str, int]]:
    """No frame decides: run-time, profiling, or nothing known at all."""
    if (
        case.spec
        and where in {"run", ""}
        and (where == "run" or case.said(r"without spec|no oom without|run ?time|under load"))
    ):
        yield "oom-spec-runtime", 2
    elif case.spec:
        yield "oom-spec-draft", 2
    elif where == "after-kv" or "private pools" in hit.text:
        yield "oom-cuda-graph-capture", 2
    elif case.sglang and case.has("sgl.smaller"):
        yield "oom-static-fraction-window", 2
    elif where == "run":
        yield "oom-runtime", 2
    elif where == "profile":
        yield "oom-profiling", 2
        yield "oom-weights-load", 1
    else:
        yield "oom-weights-load", 2 if re.search(r"[Tt]ried to allocate", hit.text) else 1


def _weights_values(values: dict[str, str]) -> dict[str, str]:
    """Neighbours matter for weights only when they hold a good part of the card."""
    held, total = float(values.get("other_gib", 0)), gib(values.get("total", ""))
    return {"other_pids": values["all_pids"]} if total and held > 0.15 * total else {}


def _spec_values(values: dict[str, str]) -> dict[str, str]:
    return {"other_pids": values["all_pids"]} if "all_pids" in values else {}


def _hog(case: Case) -> Iterator[Candidate]:
    """Another process holds much of the card at the time of the failure."""
    for hit in case.all("oom"):
        values = _numbers(case, hit)
        if "other_pids" in _weights_values(values):
            held = {"held_gib": values["other_gib"], "held_much": "1"}
            yield Candidate("gpu-memory-occupied", 1, case.evidence(hit), held, hit.line, hit.start)


def _graph_failed(case: Case) -> Iterator[Candidate]:
    for hit in case.all("graph.failed"):
        draft = bool(re.search(r"draft|eagle", _frames(hit))) or case.before("graph.draft", hit)
        cause = "oom-spec-draft" if draft else "oom-cuda-graph-capture"
        yield Candidate(cause, 3, case.evidence(hit), settings(case), hit.line, hit.start)


def _sglang_pool(case: Case) -> Iterator[Candidate]:
    hit = case.first("sgl.not-enough")
    if hit is None:
        return
    both = case.has("oom", "graph.failed", "sgl.smaller") or case.said(prose("both_ways"))
    values = settings(case)
    fraction = case.option("fraction")
    if fraction:
        values["fraction_next"] = f"{min(0.95, float(fraction) + 0.05):.2f}"
    if both or case.spec:
        yield Candidate(
            "oom-static-fraction-window", 3 if both else 2, case.evidence(hit), values, hit.line, hit.start
        )
    yield Candidate("kv-cache-no-memory", 2, case.evidence(hit), values, hit.line, hit.start)


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


def _sampler(case: Case) -> Iterator[Candidate]:
    for hit in case.all("sampler-warmup"):
        seqs = int(hit.groups["seqs"])
        after = 64 if seqs > 64 else max(8, seqs // 2)
        values = settings(case) | {
            "seqs": str(seqs),
            "seqs_next": str(after),
            "seqs_ratio": f"{seqs / after:.0f}",
        }
        yield Candidate("oom-sampler-warmup", 3, case.evidence(hit), values, hit.line, hit.start)


def _weights_said(case: Case) -> Iterator[Candidate]:
    for hit in case.all("load-not-enough"):
        values = _numbers(case, hit)
        yield Candidate(
            "oom-weights-load", 3, case.evidence(hit), values | _weights_values(values), hit.line, hit.start
        )


def _ram(case: Case) -> Iterator[Candidate]:
    """A kernel line is proof; a bare signal 9 is a good guess unless systemd sent it."""
    for hit in case.all("ram-oom-kernel"):
        if "rss_kb" in hit.groups:
            rss = {"rss_gib": f"{int(hit.groups['rss_kb']) / 2**20:.1f}"}
            yield Candidate("host-ram-oom", 3, case.evidence(hit), rss, hit.line, -1)
    hit9 = case.first("signal9")
    if hit9 is None or case.has("start-timeout") or case.before("shutdown", hit9):
        return
    full = case.said(r"ram|host memory|swap|memory limit|mem_limit|memorymax|oom")
    yield Candidate(
        "host-ram-oom",
        3 if full else 2,
        case.evidence(hit9),
        {},
        hit9.line,
        hit9.start,
    )


def _registration(case: Case) -> Iterator[Candidate]:
    """Memory registration: the limit, or this kernel's accounting."""
    hit = case.first("regmr") or case.first("memlock")
    if hit is None:
        return
    cma = {h.groups["which"].lower(): int(h.groups["kb"]) for h in case.all("cma")}
    info = case.facts.get("meminfo")
    if isinstance(info, dict):
        cma |= {
            k[3:].split("_")[0].lower(): int(v)
            for k, v in info.items()
            if str(k).lower().startswith("cma") and str(v).isdigit()
        }
    odd = "free" in cma and cma["free"] > cma.get("total", 0)
    if odd or case.has("kho") or case.said(r"kho\b|kexec[- ]handover"):
        lines = case.evidence(hit, case.first("cma"), case.first("kho"))
        yield Candidate("host-kernel-kho-cma", 3, lines, {}, hit.line, hit.start)
    unlimited = case.said(r"memlock\W{1,4}unlimited") or (
        case.unit and case.unit.get("LimitMEMLOCK") == "infinity"
    )
    if hit.sig.mark == "regmr" and not unlimited:
        yield Candidate("memlock-limit", 1 if odd else 2, case.evidence(hit), {}, hit.line, hit.start)


def _pinned(case: Case) -> Iterator[Candidate]:
    for hit in case.all("cuda.invalid-argument"):
        near = _near(hit)
        if re.search(r"pin_memory ?= ?true|\.pin_memory\(|cudahostalloc|pinned", near) or case.said(
            r"pin(?:ned|_memory)|local_cpu_size"
        ):
            yield Candidate(
                "pinned-memory-limit", 3, case.evidence(hit, case.first("pin.frame")), {}, hit.line, hit.start
            )


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "oom-phase": _oom,
    "oom-neighbour": _hog,
    "oom-graph": _graph_failed,
    "oom-sglang": _sglang_pool,
    "oom-weights": _weights_said,
    "kv-none": _kv_none,
    "kv-small": _kv_small,
    "kv-explicit": _explicit_kv,
    "kv-room": _kv_room,
    "sampler": _sampler,
    "occupied": _occupied,
    "host-ram": _ram,
    "registration": _registration,
    "pinned": _pinned,
}
