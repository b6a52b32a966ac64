"""Speculation as it was asked for: flags, method, architecture, target, a draft at all."""

import json
import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate

__all__ = ["RULES"]

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


def _topk_asked(case: Case) -> Iterator[Candidate]:
    for hit in case.all("topk"):
        note = {"steps_note": f" = {case.number('steps') + 1}"} if case.number("steps") else {}
        yield Candidate("spec-topk-unsupported", 3, case.evidence(hit), note, hit.line, hit.start)


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "spec-flags": _flags,
    "spec-method": _method,
    "spec-arch": _arch,
    "spec-target": _target,
    "spec-missing": _set_embed,
    "spec-attribute": _attribute,
    "spec-topk": _topk_asked,
}
