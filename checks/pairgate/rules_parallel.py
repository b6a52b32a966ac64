"""Can the pair be split over the cards as asked: tensor and pipeline parallelism."""

from collections.abc import Iterator

from checks.pairgate.case import Case
from checks.pairgate.model import Reason
from checks.pairgate.views import Model

__all__ = ["RULES"]


def heads_divide(case: Case) -> Iterator[Reason]:
    for model, ranks, which in ((case.target, case.tp, "target"), (case.draft, case.draft_tp, "draft")):
        if model.heads and model.heads % ranks:
            yield Reason(
                "tp-heads-indivisible",
                "num_attention_heads",
                case.target.heads,
                case.draft.heads,
                f"The {which}'s {model.heads} attention heads do not divide over {ranks} ranks.",
                f"tensor parallel {_divisor(model.heads, ranks)}.",
                f"Total number of attention heads ({model.heads}) must be divisible by"
                f" tensor parallel size ({ranks}).",
            )


def kv_heads_divide(case: Case) -> Iterator[Reason]:
    """Fewer KV heads than ranks are copied, but only evenly."""
    for model, ranks, which in ((case.target, case.tp, "target"), (case.draft, case.draft_tp, "draft")):
        kv = model.kv_heads
        if not kv or model.uses_mla or (model.heads or 0) % ranks:
            continue
        if (kv % ranks) if kv >= ranks else (ranks % kv):
            yield Reason(
                "tp-kv-heads-indivisible",
                "num_key_value_heads",
                case.target.kv_heads,
                case.draft.kv_heads,
                f"The {which}'s {kv} KV heads neither divide over {ranks} ranks nor repeat evenly on them.",
                f"tensor parallel {_kv_fit(model, ranks)}.",
                f"{max(kv, ranks)} is not divisible by {min(kv, ranks)}",
            )


def draft_tp_allowed(case: Case) -> Iterator[Reason]:
    row, given = case.roles["draft_tp"], case.want.draft_tensor_parallel
    if given is None or row["allowed"] == "target":
        return
    allowed = {1} if row["allowed"] == "1" else {1, case.tp}
    if given not in allowed:
        yield _draft_tp(
            case,
            f"{case.roles.name} runs a draft on {' or '.join(map(str, sorted(allowed)))} ranks, not {given}.",
            "leave it out." if row["head"] == "ignored" and case.is_head else f"{max(allowed)}.",
            case.error("draft_tp", draft_tp=given),
        )
    elif case.method == "draft_model" and row["draft_model"] == "equal" and given != case.tp:
        yield _draft_tp(
            case,
            f"A draft model must be split like its target: {given} ranks against {case.tp}.",
            f"draft tensor parallel {case.tp}, or leave it out.",
            case.error("draft_tp", "equal_error", draft_tp=given, tp=case.tp),
        )


def head_tp_one(case: Case) -> Iterator[Reason]:
    """The first versions ran a head on one rank only, and left out meant the target's size."""
    given = case.want.draft_tensor_parallel
    if (
        case.is_head
        and case.roles["draft_tp"]["head"] == "must-be-1"
        and (given or case.tp) > 1
        and given != 1
    ):
        yield _draft_tp(
            case,
            f"{case.roles.name} runs a head on one rank only; left out, its size is the target's {case.tp}.",
            "draft tensor parallel 1 (--speculative-draft-tensor-parallel-size 1).",
            case.error("draft_tp", "head_error"),
        )


def _draft_tp(case: Case, why: str, instead: str, error: str) -> Reason:
    given = case.want.draft_tensor_parallel
    return Reason("tp-draft-size-invalid", "draft_tensor_parallel", case.tp, given, why, instead, error)


def pipeline(case: Case) -> Iterator[Reason]:
    row = case.roles["pipeline"]
    arch = case.target.architecture
    if case.want.pipeline_parallel == 1 or case.method in row["methods"] or arch in row["classes"]:
        return
    yield Reason(
        "spec-method-unsupported",
        "pipeline_parallel",
        case.want.pipeline_parallel,
        case.method,
        f"{case.roles.name} does not run {case.method} for {arch} over pipeline stages.",
        "tensor parallelism instead of pipeline stages, or n-gram lookup.",
        case.error("pipeline", method=case.method, architecture=arch),
    )


def _divisor(heads: int, ranks: int) -> int:
    """The largest size up to ``ranks`` that divides the heads."""
    return next(n for n in range(ranks, 0, -1) if heads % n == 0)


def _kv_fit(model: Model, ranks: int) -> int:
    heads, kv = model.heads or 1, model.kv_heads or 1
    fits = (n for n in range(ranks, 0, -1) if heads % n == 0 and ((kv % n) if kv >= n else (n % kv)) == 0)
    return next(fits)


RULES = (heads_divide, kv_heads_divide, draft_tp_allowed, head_tp_one, pipeline)
