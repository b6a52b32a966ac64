"""Tensor parallel: which number does not divide."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case, divisors
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose
from checks.doctor.scan import Hit

__all__ = ["RULES"]


def sizes(number: int, case: Case, *, step: int = 1, tp: int = 0) -> dict[str, str]:
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
        values = {"heads": str(heads), "tp": str(tp), **sizes(heads, case, tp=tp)} if heads else {}
        yield Candidate("tp-heads-indivisible", 3, case.evidence(hit), values, hit.line, hit.start)
    known = case.number("heads")
    if not case.log and known and case.tp > 1 and known % case.tp:
        values = {"heads": str(known), "tp": str(case.tp), **sizes(known, case, tp=case.tp)}
        fact = case.fact("text", f"{known} attention heads, tensor parallel size {case.tp}")
        yield Candidate("tp-heads-indivisible", 2, (fact,), values)
    for hit in case.all("experts"):
        heads = case.number("heads")
        values = {"heads": str(heads), **sizes(heads, case)} if heads else {}
        yield Candidate("tp-heads-indivisible", 1, case.evidence(hit), values, hit.line, hit.start)


def _kv_heads(case: Case) -> Iterator[Candidate]:
    for hit in case.all("kv-heads"):
        heads = int(
            hit.groups.get("kv_heads", hit.groups.get("kv_heads2", case.option("kv_heads") or 0)) or 0
        )
        values = {"kv_heads": str(heads), **sizes(heads, case)} if heads else half(case)
        yield Candidate("tp-kv-heads-indivisible", 3, case.evidence(hit), values, hit.line, hit.start)


def half(case: Case) -> dict[str, str]:
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
        return {"size": str(number), "group": "128", **sizes(number, case, step=128, tp=tp)}
    name = {"tp-vocab-indivisible": "vocab", "tp-kv-heads-indivisible": "kv_heads"}.get(cause, "heads")
    return {name: str(number), **sizes(number, case, tp=tp)}


def _bare_assert(case: Case) -> Iterator[Candidate]:
    """An assertion without text in a model's constructor at TP above 1: the KV heads."""
    for hit in case.all("assert.bare"):
        frames = [c.text for c in hit.before[-12:] if c.text.startswith('File "')]
        near = "\n".join(c.text for c in hit.before[-12:]).lower()
        if "spec_decode_worker" in near:
            yield Candidate("spec-vocab-mismatch", 3, case.evidence(hit), vocabs(case), hit.line, hit.start)
        elif "vocab" in near:
            yield Candidate("tp-vocab-indivisible", 2, case.evidence(hit), {}, hit.line, hit.start)
        elif frames and re.search(r"models/\w+\.py\"?, line \d+, in (?:__init__|_init)", frames[-1]):
            kv = case.number("kv_heads")
            values = {"kv_heads": str(kv), **sizes(kv, case)} if kv else half(case)
            strength = 3 if case.tp > 1 or case.said("tensor") else 1
            heads = re.search(r"total_num_heads % |num_attention_heads % |(?<!kv_)num_heads % ", near)
            cause = "tp-heads-indivisible" if heads else "tp-kv-heads-indivisible"
            yield Candidate(cause, strength, case.evidence(hit), values, hit.line, hit.start)


def vocabs(case: Case) -> dict[str, str]:
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
            values = {"size": str(size), "group": group, **sizes(size, case, step=int(group))}
        yield Candidate("tp-quant-group-indivisible", 3, case.evidence(hit), values, hit.line, hit.start)


def _fp8(case: Case) -> Iterator[Candidate]:
    for hit in case.all("fp8-block"):
        part, block = hit.groups.get("part", hit.groups.get("part2", "")), int(hit.groups["block"])
        values: dict[str, str] = {}
        if part and case.tp and block:
            size = int(part) * case.tp
            values = {"size": str(size), "block": str(block), **sizes(size, case, step=block)}
        yield Candidate("tp-fp8-block-indivisible", 3, case.evidence(hit), values, hit.line, hit.start)


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "tp-heads": _heads,
    "tp-kv-heads": _kv_heads,
    "tp-not-divisible": _not_divisible,
    "tp-assert": _bare_assert,
    "tp-quant": _quant,
    "tp-fp8": _fp8,
}
