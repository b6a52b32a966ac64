"""The draft's own files against its target: shapes, tensors, vocabulary, window, format."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.scan import Hit

__all__ = ["RULES", "draft_window"]

#: No model is this wide; vocabularies are.
SMALLEST_VOCABULARY = 31_000
_QUANT = r"\b(?:awq|gptq|fp8|int4|int8|w4a16|w8a8|nvfp4|quantis|quantiz|marlin|bnb|bitsandbytes|compressed)"


def _shapes(case: Case) -> Iterator[Candidate]:
    """Two widths that do not meet: topk, hidden size, or layout."""
    for hit in case.all("shape.two"):
        a = hit.groups.get("a", hit.groups.get("a2", hit.groups.get("a3", "0")))
        b = hit.groups.get("b", hit.groups.get("b2", hit.groups.get("b3", "0")))
        near = "\n".join(c.text for c in (*hit.before[-60:], *hit.after[:8])).lower()
        topk = case.number("topk")
        small = max(int(a), int(b)) <= 128
        if small and (topk > 1 or re.search(r"topk|tree", near)):
            note = {"steps_note": f" = {case.number('steps') + 1}"} if case.number("steps") else {}
            yield Candidate("spec-topk-unsupported", 3, case.evidence(hit), note, hit.line, hit.start)
        elif case.spec and min(int(a), int(b)) >= SMALLEST_VOCABULARY:
            sizes = {"target_vocab": a, "draft_vocab": b}
            yield Candidate("spec-vocab-mismatch", 3, case.evidence(hit), sizes, hit.line, hit.start)
        elif case.spec or re.search(r"eagle|spec_decode|draft|medusa", near):
            values = {"head_hidden": a, "target_hidden": b} if "a" in hit.groups else {}
            strength = 3 if re.search(r"eagle|spec_decode|draft|speculat", near) or case.says("draft") else 2
            yield Candidate(
                "spec-hidden-size-mismatch", strength, case.evidence(hit), values, hit.line, hit.start
            )
            yield Candidate("spec-weights-layout", 1, case.evidence(hit), {}, hit.line, hit.start)


def _weights_shape(case: Case) -> Iterator[Candidate]:
    for hit in case.all("weights.shape"):
        near = "\n".join(c.text for c in (*hit.before[-60:], *hit.after[:8])).lower()
        if not case.spec and not re.search(r"eagle|draft|spec_decode|medusa", near):
            continue
        got, want = _dims(hit, "got"), _dims(hit, "want")
        hidden = len(got) == len(want) and len(got) > 0 and got[0] != want[0]
        yield Candidate(
            "spec-hidden-size-mismatch" if hidden else "spec-weights-layout",
            3,
            case.evidence(hit),
            _hidden(got, want) if hidden else {},
            hit.line,
            hit.start,
        )
        yield Candidate(
            "spec-weights-layout" if hidden else "spec-hidden-size-mismatch",
            1,
            case.evidence(hit),
            {},
            hit.line,
            hit.start,
        )


def _dims(hit: Hit, name: str) -> list[int]:
    text = next((v for k, v in hit.groups.items() if k.rstrip("0123456789") == name), "")
    return [int(n) for n in re.findall(r"\d+", text)]


def _hidden(got: list[int], want: list[int]) -> dict[str, str]:
    return {"head_hidden": str(got[0]), "target_hidden": str(want[0])}


def _weights_key(case: Case) -> Iterator[Candidate]:
    """A tensor without a place: quantised layers, a shared embedding, or another layout."""
    for hit in case.all("weights.key"):
        key = next((v for k, v in sorted(hit.groups.items()) if k.startswith("key")), "")
        near = "\n".join(c.text for c in (*hit.before[-40:], *hit.after[:8])).lower()
        about = f"{case.prose}\n{near}\n{hit.groups.get('cls', '').lower()}"
        if not case.spec and not re.search(
            r"eagle|draft|midlayer|medusa|speculat|verifier", about + key.lower()
        ):
            continue
        values = {"tensor": key} if key else {}
        for cause, strength in _which_key(case, key, about):
            more = {"own_embed": "1"} if cause == "spec-hidden-size-mismatch" else {}
            yield Candidate(cause, strength, case.evidence(hit), values | more, hit.line, hit.start)


def _which_key(case: Case, key: str, about: str) -> Iterator[tuple[str, int]]:
    plain = re.search(
        r"(?:mlp|self_attn)\.\w+_proj\.(?:weight|bias|qweight|scales)|gate_up_proj|qkv_proj", key
    )
    if "gguf" in about:
        yield "spec-draft-load-format", 3
    if plain and re.search(_QUANT, about):
        yield "spec-draft-quant-inherited", 3
        yield "spec-weights-layout", 2
    elif "embed_tokens" in key and (case.has("hidden-assert") or re.search(r"\b(?:70b|8192|hidden)", about)):
        yield "spec-hidden-size-mismatch", 2
        yield "spec-weights-layout", 2
    else:
        yield "spec-weights-layout", 3


def _load_format(case: Case) -> Iterator[Candidate]:
    hit = case.first("load-format-draft") or case.first("gguf")
    if hit is None or not case.spec:
        return
    gguf = "gguf" in case.prose or any("gguf" in t for t in case.asked) or "gguf" in hit.text.lower()
    if gguf and case.has(
        "exception", "symptom.engine", "load-format-draft", "arch", "weights.key", "repo-missing"
    ):
        yield Candidate("spec-draft-load-format", 3, case.evidence(hit), {}, hit.line, hit.start)


def _vocab(case: Case) -> Iterator[Candidate]:
    for hit in case.all("vocab"):
        yield Candidate("spec-vocab-mismatch", 3, case.evidence(hit), dict(hit.groups), hit.line, hit.start)


def _device_assert(case: Case) -> Iterator[Candidate]:
    """An index past the draft's positions. Without a window in sight only speculation makes it likely."""
    hits = case.all("device-assert")
    if not hits:
        return
    window = next(
        (h.groups[k] for h in hits for k in ("window", "window2") if h.groups.get(k)), ""
    ) or draft_window(case)
    if not case.spec and not window:
        return
    values = {"draft_window": window} if window else {}
    yield Candidate(
        "spec-context-length-mismatch",
        3 if window else 2,
        case.evidence(*hits[:2]),
        values,
        hits[0].line,
        hits[0].start,
    )


def _derived(case: Case) -> Iterator[Candidate]:
    """SGLang checks the draft's length with the target's words."""
    for hit in case.all("len-over"):
        if case.spec and int(hit.groups["fit_len"]) <= 8192:
            values = {"draft_window": hit.groups["fit_len"]}
            yield Candidate(
                "spec-context-length-mismatch",
                3 if case.sglang else 1,
                case.evidence(hit),
                values,
                hit.line,
                hit.start,
            )


def draft_window(case: Case) -> str:
    """The draft's max_position_embeddings, from facts or the engine's own line."""
    found = re.search(
        r"(?:max_position_embeddings|window|positions?|context|trained (?:on|at|with))\W{0,20}(\d+k?)\b",
        case.says("draft").lower(),
    )
    found = found or case.said(
        r"(?:draft|head)[^\n]{0,60}(?:max_position_embeddings|max_model_len|window|context|positions?)\D{0,20}(\d{3,6}k?|\dk)\b"
    )
    if found:
        return str(int(found[1][:-1]) * 1024) if found[1].endswith("k") else found[1]
    line = case.last("draft.shorter")
    return next((line.groups[k] for k in ("window", "window2") if line and line.groups.get(k)), "")


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "spec-shapes": _shapes,
    "spec-tensors": _weights_shape,
    "spec-keys": _weights_key,
    "spec-load-format": _load_format,
    "spec-vocab": _vocab,
    "spec-window": _device_assert,
    "spec-derived-length": _derived,
}
