"""Speculation: pair, layout, window, and what only acceptance and load can tell."""

import json
import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.scan import Hit

__all__ = ["RULES"]

LOW_RATE = 0.2
LOW_LENGTH = 1.35
GOOD_RATE = 0.4
_QUANT = r"\b(?:awq|gptq|fp8|int4|int8|w4a16|w8a8|nvfp4|quantis|quantiz|marlin|bnb|bitsandbytes|compressed)"
_DRAFT_NAME = re.compile(r"eagle|medusa|mtp|speculator|draft|dflash|hydra", re.IGNORECASE)


def _flags(case: Case) -> Iterator[Candidate]:
    legacy = case.all("legacy-flags")
    for hit in legacy:
        yield Candidate("spec-legacy-flags", 3, case.evidence(hit), _as_json(hit.text), hit.line, hit.start)
    for hit in case.all("flag.unknown"):
        if any(h.line == hit.line for h in legacy) or (
            case.has("method-literal") and "speculative-algorithm" in hit.text
        ):
            continue
        flag = next((v for k, v in sorted(hit.groups.items()) if k.startswith("flag")), "")
        values = {"flag": flag, "flag_stem": flag.strip("-").replace("_", "-").split("-")[0]} if flag else {}
        yield Candidate("cli-flag-unknown", 3, case.evidence(hit), values, hit.line, hit.start)


def _as_json(text: str) -> dict[str, str]:
    """The rejected flat flags as the JSON that replaces them."""
    pairs = {
        k.replace("-", "_"): v for k, v in re.findall(r"--([a-z][\w-]{3,50})[ =]([^\s-]\S{0,200})", text)
    }
    model = pairs.get("speculative_model", "")
    config: dict[str, object] = {}
    if model.strip("[]") == "ngram":
        config["method"] = "ngram"
    elif model:
        lower = model.lower()
        config["method"] = "eagle3" if "eagle3" in lower else "eagle" if "eagle" in lower else "draft_model"
        config["model"] = model
    for old, new in (
        ("num_speculative_tokens", "num_speculative_tokens"),
        ("speculative_draft_tensor_parallel_size", "draft_tensor_parallel_size"),
        ("ngram_prompt_lookup_max", "prompt_lookup_max"),
        ("ngram_prompt_lookup_min", "prompt_lookup_min"),
    ):
        if pairs.get(old, "").isdigit():
            config[new] = int(pairs[old])
    return {"spec_json": json.dumps(config)} if config else {}


def _method(case: Case) -> Iterator[Candidate]:
    for hit in case.all("method-draft-model") + case.all("method-literal") + case.all("method-pp"):
        method = next((v for k, v in hit.groups.items() if k.startswith("method")), "") or case.option(
            "method"
        )
        values = {"method": method} if method else {}
        yield Candidate("spec-method-unsupported", 3, case.evidence(hit), values, hit.line, hit.start)


def _arch(case: Case) -> Iterator[Candidate]:
    """A draft's class unknown, or the target's."""
    for hit in case.all("arch"):
        arch = next((v for k, v in sorted(hit.groups.items()) if k.startswith("arch")), "").strip("[]'\" ")
        draft = bool(_DRAFT_NAME.search(arch)) or (case.spec and bool(case.said(r"draft|head|eagle")))
        cause = "spec-arch-unsupported" if draft else "model-arch-unsupported"
        yield Candidate(
            cause,
            3 if _DRAFT_NAME.search(arch) else 2,
            case.evidence(hit),
            {"arch": arch},
            hit.line,
            hit.start,
        )
        if not draft and case.spec:
            yield Candidate(
                "spec-arch-unsupported", 2, case.evidence(hit), {"arch": arch}, hit.line, hit.start
            )
    for hit in case.all("arch.type"):
        arch = hit.groups.get("arch", "")
        draft = bool(_DRAFT_NAME.search(arch))
        cause = "spec-arch-unsupported" if draft else "model-arch-unsupported"
        yield Candidate(
            cause, 3 if draft else 2, case.evidence(hit), {"arch": arch} if arch else {}, hit.line, hit.start
        )


def _target(case: Case) -> Iterator[Candidate]:
    for hit in case.all("eagle3-target"):
        kind = case.first("spec.target-type")
        target = hit.groups.get("target", kind.groups["target"] if kind else case.says("model"))
        yield Candidate(
            "spec-target-unsupported",
            3,
            case.evidence(hit),
            {"target": target} if target else {},
            hit.line,
            hit.start,
        )


def _set_embed(case: Case) -> Iterator[Candidate]:
    """The draft worker holds a plain causal model: no draft was given, or a full model in a head's place."""
    for hit in case.all("spec.set-embed"):
        given = bool(case.says("draft")) or any(
            re.search(r"speculative[-_]draft(?:[-_]model)?(?:[-_]path)?[ =]['\"]?[/\w]", t)
            for t in case.asked
        )
        no_path = bool(case.said(r"no --speculative-draft|without (?:a )?draft|no draft"))
        if given and not no_path:
            yield Candidate(
                "spec-arch-unsupported",
                2,
                case.evidence(hit),
                {"arch": hit.groups["cls"]},
                hit.line,
                hit.start,
            )
        yield Candidate(
            "spec-draft-missing",
            2 if given and not no_path else 3,
            case.evidence(hit),
            {},
            hit.line,
            hit.start,
        )


def _attribute(case: Case) -> Iterator[Candidate]:
    """The proposer reaches into a target class that has no such part."""
    for hit in case.all("attr.model"):
        near = "\n".join(c.text for c in (*hit.before[-30:], *hit.after[:6])).lower()
        inside = re.search(r"eagle|spec_decode|speculat|drafter|draft_worker", near)
        if hit.groups["attr"].startswith("set_embed") or not (case.spec or inside):
            continue
        values = {"target": hit.groups["target"]}
        yield Candidate(
            "spec-target-unsupported", 3 if inside else 2, case.evidence(hit), values, hit.line, hit.start
        )


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
        elif case.spec or re.search(r"eagle|spec_decode|draft|medusa", near):
            values = {"head_hidden": a, "target_hidden": b} if "a" in hit.groups else {}
            strength = 3 if re.search(r"eagle|spec_decode|draft|speculat", near) or case.says("draft") else 2
            yield Candidate(
                "spec-hidden-size-mismatch", strength, case.evidence(hit), values, hit.line, hit.start
            )
            yield Candidate("spec-weights-layout", 1, case.evidence(hit), {}, hit.line, hit.start)


def _topk_asked(case: Case) -> Iterator[Candidate]:
    for hit in case.all("topk"):
        note = {"steps_note": f" = {case.number('steps') + 1}"} if case.number("steps") else {}
        yield Candidate("spec-topk-unsupported", 3, case.evidence(hit), note, hit.line, hit.start)


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
    ) or _draft_window(case)
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


def _draft_window(case: Case) -> str:
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


def _acceptance(case: Case) -> Iterator[Candidate]:
    """What only numbers tell: near-zero, short window, no gain, too much load."""
    rate, length, lines = _rates(case)
    window, served = _draft_window(case), case.option("max_model_len") or _served(case)
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
    return str(int(found[1]) * 1024) if found else ""


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
    loaded = case.said(r"concurren|qps|rps|under load|batch size|clients|simultaneous|requests at once|load:")
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
        and (running >= 4 or case.said(r"slow|worse|loss|loses"))
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
    "spec-flags": _flags,
    "spec-method": _method,
    "spec-arch": _arch,
    "spec-target": _target,
    "spec-missing": _set_embed,
    "spec-attribute": _attribute,
    "spec-shapes": _shapes,
    "spec-topk": _topk_asked,
    "spec-tensors": _weights_shape,
    "spec-keys": _weights_key,
    "spec-load-format": _load_format,
    "spec-vocab": _vocab,
    "spec-window": _device_assert,
    "spec-derived-length": _derived,
    "spec-acceptance": _acceptance,
    "spec-silent": _silent,
}
