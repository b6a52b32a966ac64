"""Can this engine version load such a draft at all: method, class, file format, tensor layout."""

import re
from collections.abc import Iterator

from checks.facts import Missing
from checks.pairgate.case import HEADS, Case
from checks.pairgate.catalogue import layout
from checks.pairgate.model import Reason, Severity

__all__ = ["RULES"]


def wrong_method(case: Case) -> Iterator[Reason]:
    """A method was asked for that the files are not."""
    asked, found = case.want.method, case.draft.method
    if asked and found and asked != found:
        yield Reason(
            "spec-weights-layout",
            "method",
            asked,
            found,
            f"{case.draft.label} is a {found} draft by its files; a draft for {asked} is built otherwise.",
            f"method {found}.",
        )


def method_unsupported(case: Case) -> Iterator[Reason]:
    row = case.roles["methods"]
    if case.method not in row["supported"]:
        yield Reason(
            "spec-method-unsupported",
            "method",
            case.roles.name,
            case.method,
            f"{case.roles.name} does not serve method {case.method}.",
            f"one of {', '.join(row['supported'])}, or n-gram lookup, or another engine version.",
            case.error("methods", method=case.method, architectures=[case.draft.architecture]),
        )


def class_unsupported(case: Case) -> Iterator[Reason]:
    """The class that the engine would build is not in its registry."""
    if (
        not case.is_head
        or case.draft.speculators_type
        or case.method not in case.roles["methods"]["supported"]
    ):
        return
    row = case.roles["head_classes"]
    built = _built_class(case, row["naming"])
    if built and built not in row[case.method]:
        yield Reason(
            "spec-arch-unsupported",
            "architectures",
            case.target.architecture,
            case.draft.architecture,
            f"{case.roles.name} would build {built} for this {case.method} head and has no such class.",
            _other_class(case),
            f"Model architectures ['{built}'] are not supported for now. Supported architectures: ...",
        )


def _built_class(case: Case, naming: str) -> str:
    arch = case.draft.architecture
    if naming == "fixed":
        return "EAGLEModel"
    prefix = "Eagle" if case.method == "eagle" else "Eagle3"
    keep_suffix = naming == "prefix-unless-suffix" and case.method == "eagle3"
    if naming == "as-is" or not arch or arch.startswith(prefix) or (keep_suffix and arch.endswith("Eagle3")):
        return arch
    return prefix + arch


def _other_class(case: Case) -> str:
    known = ", ".join(case.roles["head_classes"][case.method]) or "none"
    if case.method == "eagle" and "qwen" in case.draft.architecture.lower() and case.roles.engine == "vllm":
        return "an EAGLE-3 head for this target, or n-gram lookup: vLLM has no EAGLE-1/2 class for Qwen."
    if case.roles["head_classes"]["naming"] == "as-is":
        return f"a head whose config.json names one of: {known}."
    return f"a head that becomes one of: {known}; or another engine version."


def old_head_format(case: Case) -> Iterator[Reason]:
    """The first versions read only heads converted to their own model_type."""
    fixed = case.roles["head_classes"]["naming"] == "fixed"
    if fixed and case.method == "eagle" and case.draft.meta.config.get("model_type") != "eagle":
        yield Reason(
            "spec-weights-layout",
            "model_type",
            "eagle",
            case.draft.model_type,
            f"{case.roles.name} reads only heads in its own layout (model_type eagle, with lm_head).",
            "vLLM 0.8.5 or newer, which reads published heads as they are, or a converted one.",
        )


def speculators_format(case: Case) -> Iterator[Reason]:
    kind = case.draft.speculators_type
    if not kind:
        return
    row = case.roles["speculators"]
    known_layer = case.draft.layer_type in row["layers"] or kind != "eagle3"
    if kind in row["types"] and known_layer:
        yield from _speculators_structure(case)
        return
    what = f"speculators type {kind}" if kind not in row["types"] else f"layer type {case.draft.layer_type}"
    yield Reason(
        "spec-arch-unsupported",
        "speculators_model_type",
        case.roles.name,
        f"{kind} ({case.draft.layer_type})",
        f"{case.roles.name} does not read {what}.",
        "a newer vLLM (0.25.1 reads llama and qwen3 layers), or a head in EAGLE's own format.",
        case.error(
            "speculators", types=row["types"], draft=case.draft.label, architectures=[case.draft.architecture]
        ),
    )


def _speculators_structure(case: Case) -> Iterator[Reason]:
    spec = case.draft.meta.config.get("speculators_config")
    methods = spec.get("proposal_methods") if isinstance(spec, dict) else None
    if not (isinstance(methods, list) and methods and case.draft.verifier):
        yield Reason(
            "spec-weights-layout",
            "speculators_config",
            case.target.label,
            None,
            "The file calls itself a speculators model but names no proposal method or no verifier.",
            "the head's original repository; this copy's config.json is incomplete.",
            "Invalid speculators config structure",
        )


def tensors_not_seen(case: Case) -> Iterator[Reason]:
    """Nobody looked at the shapes: that is said, never passed over."""
    tensors = case.draft.meta.tensors
    if isinstance(tensors, Missing):
        yield Reason(
            "spec-weights-layout",
            "tensors",
            None,
            tensors.reason,
            f"The draft's tensor shapes were not looked at ({tensors.reason}): only its configuration was.",
            "a repository with safetensors files.",
            severity="warn",
        )


def layout_wrong(case: Case) -> Iterator[Reason]:
    rules = layout(case.method)
    if rules is None or not case.draft.tensors:
        return
    names = case.draft.tensors
    for group in rules["required"]:
        if group == ["fc.weight"] and not case.draft.uses_aux_states:
            continue
        if not any(name in names for name in group):
            yield _layout_reason(case, group[0], _why_missing(case, group[0]))
    fatal = [n for n in names if any(re.search(p, n) for p in rules["fatal"])]
    if fatal:
        yield _layout_reason(case, fatal[0], f"{fatal[0]} has no place in the engine's {case.method} layer.")
    strange = [n for n in names if n not in fatal and not any(re.search(p, n) for p in rules["known"])]
    if strange and not _prefixed(strange):
        shown = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        yield _layout_reason(
            case, strange[0], f"The engine's {case.method} head has no place for {shown}.", "warn"
        )


def _layout_reason(case: Case, name: str, why: str, severity: Severity = "refuse") -> Reason:
    return Reason(
        "spec-weights-layout",
        name,
        case.method,
        sorted(case.draft.tensors)[:3],
        why,
        f"a {case.method} head in the published layout: fc.weight, and midlayer.* or layers.0.*.",
        f"There is no module or parameter named 'model.{name}'" if name in case.draft.tensors else "",
        severity=severity,
    )


def _why_missing(case: Case, name: str) -> str:
    prefixed = _prefixed(case.draft.tensors)
    if prefixed:
        return f"There is no {name}: every tensor is below {prefixed!r}, as a trainer writes a head."
    return f"There is no {name}, which every {case.method} head has: a whole model, or an unconverted head."


def _prefixed(names: object) -> str:
    """A prefix before all names that the published layout does not have."""
    firsts = {str(n).split(".", 1)[0] for n in names} if names else set()  # type: ignore[attr-defined]
    return firsts.pop() if len(firsts) == 1 and firsts & {"model", "module", "draft_model", "eagle"} else ""


def fc_bias(case: Case) -> Iterator[Reason]:
    """A bias that the engine has no parameter for."""
    row = case.roles["head_input"]
    announced = row["fc_bias"] == "config" and (
        case.draft.config.get("bias") or case.draft.config.get("eagle_fc_bias")
    )
    if (
        case.method == "eagle"
        and "fc.bias" in case.draft.tensors
        and row["fc_bias"] != "yes"
        and not announced
    ):
        yield Reason(
            "spec-weights-layout",
            "fc.bias",
            "no bias",
            list(case.draft.tensors["fc.bias"].shape),
            f"The head has a bias on fc; {case.roles.name} loads fc without one.",
            "SGLang, whose fc has a bias, or an EAGLE-3 head for this target.",
            case.error("head_input", "bias_error"),
        )


def target_unsupported(case: Case) -> Iterator[Reason]:
    """EAGLE-3 needs a target class that hands out states of inner layers."""
    row = case.roles["eagle3_targets"]
    if case.method != "eagle3" or "eagle3" not in case.roles["methods"]["supported"] or row["by"] == "any":
        return
    by_type = row["by"] == "model_type"
    have = case.target.model_type if by_type else case.target.architecture
    fits = any(part in have for part in row["names"]) if by_type else have in row["names"]
    if have and not fits:
        yield Reason(
            "spec-target-unsupported",
            "model_type" if by_type else "architectures",
            have,
            case.method,
            f"{case.roles.name} can not read inner hidden states of {have}, which EAGLE-3 needs.",
            "n-gram lookup or a small draft model for this target; newer versions support more targets.",
            case.error("eagle3_targets", model_type=case.target.model_type, architecture=have),
        )


def load_format(case: Case) -> Iterator[Reason]:
    row = case.roles["quantised"]
    if case.target.is_gguf and not case.draft.is_gguf:
        key = row["load_format"]
        yield Reason(
            "spec-draft-load-format",
            "load_format",
            "gguf",
            "safetensors",
            "The draft would be loaded in the target's format, GGUF.",
            "a safetensors target"
            + ("." if key == "inherited" else f", or set {key} in the speculative configuration."),
        )


def draft_is_target(case: Case) -> Iterator[Reason]:
    """The target's own folder given as its draft."""
    same_commit = case.draft.meta.commit == case.target.meta.commit
    if case.draft.label == case.target.label and same_commit and case.method in {"draft_model", *HEADS}:
        yield Reason(
            "spec-draft-missing",
            "draft",
            case.target.label,
            case.draft.label,
            "Draft and target are the same checkpoint: nothing would be gained, and no head is there.",
            "a head for this target, a smaller model, or n-gram lookup.",
        )


RULES = (
    draft_is_target,
    wrong_method,
    method_unsupported,
    class_unsupported,
    old_head_format,
    speculators_format,
    layout_wrong,
    fc_bias,
    target_unsupported,
    load_format,
    tensors_not_seen,
)
