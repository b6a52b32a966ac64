"""Ranks: who can not see whom, which one is missing or late."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.outcome import Severity

__all__ = ["RULES"]


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
        and not any(re.search(r"nnodes\W{1,4}[2-9]", text) for text in case.asked)
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
    helped = case.said(r"disable[-_ ]custom[-_ ]all[-_ ]?reduce\W[^\n]{0,30}(?:works?|fine|fix|help|ok\b)")
    if frame and case.has("symptom.engine", "exception", "cuda.error"):
        yield Candidate(
            "tp-custom-allreduce", 3 if helped else 2, case.evidence(frame), {}, frame.line, frame.start
        )


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
    named = any("net/" in line.text.lower() for line in hit.after[:3])  # what NCCL calls its last error
    remote = named or case.said(r"nodes|multi-?node|ray|nnodes|ib\b|infiniband|roce|interface|firewall")
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
