"""Tensor parallel: which number does not divide, who can not see whom, which rank is missing."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case, divisors
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose
from checks.doctor.scan import Hit
from checks.outcome import Severity

__all__ = ["RULES"]


def _sizes(number: int, case: Case, *, step: int = 1, tp: int = 0) -> dict[str, str]:
    """Valid sizes for a number, and the best up to the wish: a power of two (KV heads mostly are) if any."""
    wish = tp or case.tp or case.gpus or 8
    fits = divisors(number, most=max(case.gpus, wish, 8), step=step)
    small = [n for n in fits if n <= wish]
    best = max((n for n in small if n & (n - 1) == 0 and n > 1), default=max(small, default=1))
    return {"tp_valid": ", ".join(map(str, fits)) or "1", "tp_best": str(best)}


def _tp(case: Case, hit: Hit) -> int:
    """The size that failed: from the line, else from the settings."""
    for key in ("tp", "tp2"):
        if hit.groups.get(key, "").isdigit():
            return int(hit.groups[key])
    return case.tp


def _heads(case: Case) -> Iterator[Candidate]:
    for hit in case.all("heads"):
        heads = int(hit.groups.get("heads", hit.groups.get("heads2", case.option("heads") or 0)))
        tp = _tp(case, hit)
        values = {"heads": str(heads), "tp": str(tp), **_sizes(heads, case, tp=tp)} if heads else {}
        yield Candidate("tp-heads-indivisible", 3, case.evidence(hit), values, hit.line, hit.start)
    for hit in case.all("experts"):
        heads = case.number("heads")
        values = {"heads": str(heads), **_sizes(heads, case)} if heads else {}
        yield Candidate("tp-heads-indivisible", 1, case.evidence(hit), values, hit.line, hit.start)


def _kv_heads(case: Case) -> Iterator[Candidate]:
    for hit in case.all("kv-heads"):
        heads = int(
            hit.groups.get("kv_heads", hit.groups.get("kv_heads2", case.option("kv_heads") or 0)) or 0
        )
        values = {"kv_heads": str(heads), **_sizes(heads, case)} if heads else _half(case)
        yield Candidate("tp-kv-heads-indivisible", 3, case.evidence(hit), values, hit.line, hit.start)


def _half(case: Case) -> dict[str, str]:
    return {"tp": str(case.tp), "tp_half": str(case.tp // 2)} if case.tp > 1 else {}


def _not_divisible(case: Case) -> Iterator[Candidate]:
    """The message (a is not divisible by b) names neither: size and frames tell."""
    for hit in case.all("notdiv"):
        number, by = int(hit.groups["a"]), int(hit.groups["b"])
        near = "\n".join(c.text for c in (*hit.before[-60:], *hit.after[:6])).lower()
        for cause, strength in _which(case, number, by, near):
            values = {"tp": str(by), **_named(cause, number, case, by)}
            yield Candidate(cause, strength, case.evidence(hit), values, hit.line, hit.start)


def _which(case: Case, number: int, by: int, near: str) -> Iterator[tuple[str, int]]:
    about = f"{case.says('model').lower()}\n{case.prose}"
    if (
        re.search(r"vocab_parallel|vocabparallel|lm_head|embed_tokens|parallellmhead", near)
        or number >= 31_000
    ):
        yield "tp-vocab-indivisible", 3
    elif re.search(r"visual|vision|_vl\.py|vit\.py|siglip|clip\.py|internvl|encoder", near) or prose(
        "vision_model"
    ).search(about):
        yield "tp-vision-heads-indivisible", 3
    elif number > 512:
        yield "tp-quant-group-indivisible", 2
    elif case.number("kv_heads") == number or (number <= 16 and number < by):
        yield "tp-kv-heads-indivisible", 2
        yield "tp-vision-heads-indivisible", 1
    else:
        yield "tp-heads-indivisible", 2
        yield "tp-kv-heads-indivisible", 1


def _named(cause: str, number: int, case: Case, tp: int) -> dict[str, str]:
    if cause == "tp-quant-group-indivisible":
        return {"size": str(number), "group": "128", **_sizes(number, case, step=128, tp=tp)}
    name = {"tp-vocab-indivisible": "vocab", "tp-kv-heads-indivisible": "kv_heads"}.get(cause, "heads")
    return {name: str(number), **_sizes(number, case, tp=tp)}


def _bare_assert(case: Case) -> Iterator[Candidate]:
    """An assertion without text in a model's constructor at TP above 1: the KV heads."""
    for hit in case.all("assert.bare"):
        frames = [c.text for c in hit.before[-12:] if c.text.startswith('File "')]
        near = "\n".join(c.text for c in hit.before[-12:]).lower()
        if "spec_decode_worker" in near:
            yield Candidate("spec-vocab-mismatch", 3, case.evidence(hit), _vocabs(case), hit.line, hit.start)
        elif "vocab" in near:
            yield Candidate("tp-vocab-indivisible", 2, case.evidence(hit), {}, hit.line, hit.start)
        elif frames and re.search(r"models/\w+\.py\"?, line \d+, in (?:__init__|_init)", frames[-1]):
            kv = case.number("kv_heads")
            values = {"kv_heads": str(kv), **_sizes(kv, case)} if kv else _half(case)
            strength = 3 if case.tp > 1 or case.said("tensor") else 1
            yield Candidate(
                "tp-kv-heads-indivisible", strength, case.evidence(hit), values, hit.line, hit.start
            )


def _vocabs(case: Case) -> dict[str, str]:
    """Vocabulary sizes that the facts give for target and draft."""
    target = re.search(r"vocab\w*\W{0,3}(\d{4,7})", case.says("model").lower())
    draft = re.search(r"vocab\w*\W{0,3}(\d{4,7})", case.says("draft").lower())
    return {"target_vocab": target[1], "draft_vocab": draft[1]} if target and draft else {}


def _quant(case: Case) -> Iterator[Candidate]:
    for hit in case.all("quant-aligned"):
        part, group = hit.groups.get("part"), hit.groups.get("group", hit.groups.get("group2"))
        values: dict[str, str] = {}
        if part and group and case.tp:
            size = int(part) * case.tp
            values = {"size": str(size), "group": group, **_sizes(size, case, step=int(group))}
        yield Candidate("tp-quant-group-indivisible", 3, case.evidence(hit), values, hit.line, hit.start)


def _fp8(case: Case) -> Iterator[Candidate]:
    for hit in case.all("fp8-block"):
        part, block = hit.groups.get("part", hit.groups.get("part2", "")), int(hit.groups["block"])
        values: dict[str, str] = {}
        if part and case.tp and block:
            size = int(part) * case.tp
            values = {"size": str(size), "block": str(block), **_sizes(size, case, step=block)}
        yield Candidate("tp-fp8-block-indivisible", 3, case.evidence(hit), values, hit.line, hit.start)


def _world(case: Case) -> Iterator[Candidate]:
    for hit in case.all("world-size"):
        groups = hit.groups
        seen = next((groups[k] for k in ("gpus", "gpus2", "gpus3") if groups.get(k)), "")
        world = next((groups[k] for k in ("world", "world2", "world3") if groups.get(k)), str(case.tp or ""))
        values = {"gpus": seen, "world": world} if seen and world else {}
        yield Candidate("tp-world-size-exceeds-gpus", 3, case.evidence(hit), values, hit.line, hit.start)
    wait = case.first("ray.wait")
    if wait and not case.has("ready", "load.begin"):
        yield Candidate("tp-world-size-exceeds-gpus", 2, case.evidence(wait), {}, wait.line, wait.start)
    if (
        case.gpus
        and case.tp > case.gpus
        and not case.says("nodes")
        and not re.search(r"node|ray", case.prose)
    ):
        why = case.fact("count", f"tensor parallel {case.tp}, {case.gpus} GPUs")
        values = {"gpus": str(case.gpus), "world": str(case.tp)}
        yield Candidate("tp-world-size-exceeds-gpus", 1, (why,), values)


def _unbalanced(case: Case) -> Iterator[Candidate]:
    for hit in case.all("unbalanced"):
        values = {"spec": "1"} if case.spec else {}
        yield Candidate("tp-unbalanced-gpus", 3, case.evidence(hit), values, hit.line, hit.start)


def _custom_ar(case: Case) -> Iterator[Candidate]:
    for hit in case.all("custom-ar"):
        yield Candidate("tp-custom-allreduce", 3, case.evidence(hit), {}, hit.line, hit.start)
    for hit in case.all("cuda.invalid-argument") + case.all("exception"):
        near = "\n".join(c.text for c in hit.before[-30:]).lower()
        if re.search(
            r"custom_all_reduce|custom_ar|register_graph_buffers|graph_buffer_ipc|open_mem_handle", near
        ):
            yield Candidate("tp-custom-allreduce", 3, case.evidence(hit), {}, hit.line, hit.start)
    frame = case.last("custom-ar.frame")
    if frame and case.has("symptom.engine", "exception"):
        yield Candidate("tp-custom-allreduce", 2, case.evidence(frame), {}, frame.line, frame.start)


def _hang(case: Case) -> Iterator[Candidate]:
    """NCCL is up, nothing moves, nobody complains."""
    zero = case.last("hang.zero")
    init = case.last("nccl.init")
    if zero and not case.has("hang.progress") and (init or case.tp > 1):
        yield Candidate(
            "tp-p2p-hang-iommu-acs", 3 if init else 2, case.evidence(init, zero), {}, zero.line, zero.start
        )
    said = case.said(r"hang|stuck|never (?:returns|completes|finishes)|freez|no (?:progress|output)")
    if init and said and not case.failed:
        yield Candidate("tp-p2p-hang-iommu-acs", 2, case.evidence(init), {}, init.line, init.start)
    quiet = not case.failed and not case.has("ready", "oom", "start-timeout", "nccl.watchdog", "nccl.system")
    if init and quiet and not said and not zero:
        yield Candidate(
            "tp-p2p-hang-iommu-acs", 1, case.evidence(init), {}, init.line, init.start, Severity.WARNING
        )
    if case.said(r"\bacs\b|iommu") and (said or init or case.has("hang.shm")):
        fact = case.said(r"[^\n]{0,80}(?:\bacs\b|iommu)[^\n]{0,80}")
        yield Candidate("tp-p2p-hang-iommu-acs", 3, (case.fact("text", fact[0] if fact else "iommu"),))
    waits = case.all("hang.shm")
    if len(waits) >= 2 and not case.has("ready") and not case.failed and (case.tp > 1 or init):
        yield Candidate(
            "tp-p2p-hang-iommu-acs", 2, case.evidence(*waits[-2:]), {}, waits[0].line, waits[0].start
        )


def _watchdog(case: Case) -> Iterator[Candidate]:
    """SeqNum 1 is topology, a late one a slow rank."""
    hits = case.all("nccl.watchdog")
    if not hits:
        return
    first = hits[0]
    ranks = sorted({int(h.groups["rank"]) for h in hits if h.groups.get("rank")})
    seqs = [int(h.groups["seq"]) for h in hits if h.groups.get("seq")]
    values = {"ranks": ", ".join(map(str, ranks))} if ranks else {}
    if first.groups.get("ms"):
        values["timeout_s"] = str(int(first.groups["ms"]) // 1000)
    if seqs and max(seqs) <= 3:
        several = case.said(r"\b(?:[2-9]|\d\d) nodes|multi-?node|nnodes|two nodes|node\b")
        yield Candidate(
            "tp-nccl-network" if several else "tp-p2p-hang-iommu-acs",
            3,
            case.evidence(first),
            values,
            first.line,
            first.start,
        )
        yield Candidate("tp-nccl-timeout", 2, case.evidence(first), values, first.line, first.start)
    else:
        yield Candidate("tp-nccl-timeout", 3, case.evidence(*hits[:2]), values, first.line, first.start)


def _nccl_system(case: Case) -> Iterator[Candidate]:
    """NCCL's "unhandled system error" is a symptom; without any other line it points to network or shm."""
    hit = case.first("nccl.system")
    if hit is None or case.has("shm", "memlock", "regmr", "nccl-connect", "nccl.watchdog"):
        return
    if "cuda" in hit.text.lower():
        yield Candidate(
            "driver-too-old" if case.said(r"driver|cuda") else "tp-p2p-hang-iommu-acs",
            1,
            case.evidence(hit),
            {},
            hit.line,
            hit.start,
        )
        return
    remote = case.said(r"nodes|multi-?node|ray|nnodes|ib\b|infiniband|roce|interface|firewall")
    yield Candidate(
        "tp-nccl-network" if remote else "shm-too-small", 2, case.evidence(hit), {}, hit.line, hit.start
    )
    yield Candidate(
        "shm-too-small" if remote else "tp-nccl-network", 1, case.evidence(hit), {}, hit.line, hit.start
    )


def _draft_tp(case: Case) -> Iterator[Candidate]:
    for hit in case.all("draft-tp"):
        target = hit.groups.get("target", str(case.tp or ""))
        if "target" in hit.groups:
            fix = (target, f"this release wants exactly the target's size ({target})")
        elif "does not support TP" in hit.text or "or" not in hit.groups:
            fix = ("1", "this release accepts only 1")
        else:
            fix = (target or "1", f"allowed are 1 and the target's size ({target or 'tensor_parallel'})")
        values = {"draft_tp": fix[0], "draft_tp_why": fix[1]}
        yield Candidate("tp-draft-size-invalid", 3, case.evidence(hit), values, hit.line, hit.start)
    wish, tp = case.number("draft_tp"), case.tp
    if wish and tp and wish not in {1, tp}:
        why = case.fact("draft_tensor_parallel_size", f"{wish}, target {tp}")
        values = {"draft_tp": str(tp), "draft_tp_why": f"allowed are 1 and the target's size ({tp})"}
        yield Candidate("tp-draft-size-invalid", 1, (why,), values)


def _mig(case: Case) -> Iterator[Candidate]:
    hit = case.first("mig.int") or case.first("mig-nvml")
    slices = max((len(re.findall(r"mig-[0-9a-f.…]", t)) for t in case.asked), default=0)
    mig = hit is not None or slices > 0 or bool(case.said(r"\bmig\b"))
    lines = case.evidence(hit) if hit else (case.fact("text", "MIG devices"),)
    at = (hit.line, hit.start) if hit else (-1, -1)
    if mig and (case.tp > 1 or (slices > 1 and hit is not None)):
        yield Candidate("mig-no-tensor-parallel", 3, lines, {}, *at)
    elif hit is not None and hit.sig.mark == "mig.int":
        yield Candidate("mig-visible-devices", 3, lines, {}, *at)
    elif slices and case.has("exception", "gpu-invisible"):
        yield Candidate("mig-visible-devices", 2, lines, {}, *at)


def _cpu_numa(case: Case) -> Iterator[Candidate]:
    for hit in case.all("tp-cpu-numa"):
        ranks = int(hit.groups["ranks"])
        values = {"ranks": str(ranks), "bind": '"' + "|".join(map(str, range(ranks))) + '"'}
        yield Candidate("tp-cpu-numa", 3, case.evidence(hit), values, hit.line, hit.start)


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "tp-heads": _heads,
    "tp-kv-heads": _kv_heads,
    "tp-not-divisible": _not_divisible,
    "tp-assert": _bare_assert,
    "tp-quant": _quant,
    "tp-fp8": _fp8,
    "tp-world": _world,
    "tp-unbalanced": _unbalanced,
    "tp-custom-ar": _custom_ar,
    "tp-hang": _hang,
    "tp-watchdog": _watchdog,
    "tp-nccl": _nccl_system,
    "tp-draft": _draft_tp,
    "mig": _mig,
    "tp-cpu": _cpu_numa,
}
