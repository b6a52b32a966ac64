"""Out of memory by phase and owner. The message is the same everywhere: frames and marks tell."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case, gib
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose
from checks.doctor.rules.phases import framed, frames_of, lines_near, numbers, phase, settings
from checks.doctor.scan import Hit

__all__ = ["RULES"]


def _oom(case: Case) -> Iterator[Candidate]:
    for hit in case.all("oom"):
        if re.search(r"Failed to create unquantized|warming up (?:the )?(?:sampler|pooler)", hit.text):
            continue
        where = phase(case, hit)
        if "pin_memory" in lines_near(hit) and case.said(r"pinned|wsl|swap[-_]space|offload|local_cpu"):
            where = "pinned"
        values = numbers(case, hit)
        for cause, strength in _causes(case, hit, where):
            extra = neighbours(values) if cause == "oom-weights-load" else _spec_values(values)
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
    elif where == "profile" and framed(hit):
        yield "oom-profiling", 3
        if case.spec:
            yield "oom-spec-draft", 3 if case.said(prose("fine_without")) else 1
    elif where == "graph":
        yield "oom-cuda-graph-capture", 3
        if case.spec:
            yield "oom-spec-draft", 3 if case.said(prose("fine_without")) else 1
    else:
        yield from _unclear(case, hit, where)


def _serving(case: Case, hit: Hit) -> bool:
    """Requests were running: ready before, or frames and facts that only serving has."""
    if case.before("ready", hit):
        return True
    frames = frames_of(hit)
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


def neighbours(values: dict[str, str]) -> dict[str, str]:
    """Neighbours matter for weights only when they hold a good part of the card."""
    held, total = float(values.get("other_gib", 0)), gib(values.get("total", ""))
    return {"other_pids": values["all_pids"]} if total and held > 0.15 * total else {}


def _spec_values(values: dict[str, str]) -> dict[str, str]:
    return {"other_pids": values["all_pids"]} if "all_pids" in values else {}


def _hog(case: Case) -> Iterator[Candidate]:
    """Another process holds much of the card at the time of the failure."""
    for hit in case.all("oom"):
        values = numbers(case, hit)
        if "other_pids" in neighbours(values):
            held = {"held_gib": values["other_gib"], "held_much": "1"}
            yield Candidate("gpu-memory-occupied", 1, case.evidence(hit), held, hit.line, hit.start)


def _graph_failed(case: Case) -> Iterator[Candidate]:
    for hit in case.all("graph.failed"):
        draft = bool(re.search(r"draft|eagle", frames_of(hit))) or case.before("graph.draft", hit)
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
        values = numbers(case, hit)
        yield Candidate(
            "oom-weights-load", 3, case.evidence(hit), values | neighbours(values), hit.line, hit.start
        )


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "oom-phase": _oom,
    "oom-neighbour": _hog,
    "oom-graph": _graph_failed,
    "oom-sglang": _sglang_pool,
    "oom-weights": _weights_said,
    "sampler": _sampler,
}
