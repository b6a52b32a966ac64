"""What the engine refuses before or while it loads, whatever the memory: each with its public name.

Sources: vLLM 0.25.1 config/vllm.py, config/model.py (verify_with_parallel_config), config/speculative.py,
v1/worker/gpu/spec_decode/autoregressive/speculator.py; layers/quantization (group sizes).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from checks.planner.scenario import Scenario
from checks.planner.shapes import Shape
from checks.planner.work import Work

__all__ = ["Refusal", "refusals"]

#: Flat speculative flags, gone since the JSON --speculative-config (vLLM 0.9.2 wheel onwards).
LEGACY_FLAGS = (
    "--speculative-model",
    "--num-speculative-tokens",
    "--speculative-draft-tensor-parallel-size",
    "--speculative-max-model-len",
    "--speculative-disable-by-batch-size",
    "--ngram-prompt-lookup-max",
    "--ngram-prompt-lookup-min",
)
KNOWN_METHODS = frozenset(
    {
        "none",
        "ngram",
        "ngram_gpu",
        "suffix",
        "draft_model",
        "eagle",
        "eagle3",
        "mtp",
        "medusa",
        "mlp_speculator",
    }
)


@dataclass(frozen=True)
class Refusal:
    """``slug`` is the public cause, ``text`` says what collides, with both values."""

    slug: str
    text: str


def refusals(s: Scenario, w: Work) -> Iterator[Refusal]:
    """In the order in which the engine would meet them."""
    yield from _flags(s)
    yield from _parallel(s, w)
    yield from _quantised(w, w.target)
    yield from _speculation(s, w)


def _flags(s: Scenario) -> Iterator[Refusal]:
    for arg in s.extra_args:
        name = arg.split("=", 1)[0]
        if name in LEGACY_FLAGS:
            yield Refusal(
                "spec-legacy-flags", f"{name} is gone: speculation is set by --speculative-config JSON"
            )
            return


def _parallel(s: Scenario, w: Work) -> Iterator[Refusal]:
    world = s.tp * s.pp
    if s.gpus is not None and world > s.gpus:
        yield Refusal("tp-world-size-exceeds-gpus", f"{world} ranks on {s.gpus} GPUs")
    heads, kv = w.target.heads, w.target.kv_heads
    if heads % s.tp:
        yield Refusal("tp-heads-indivisible", f"{heads} attention heads do not divide by TP {s.tp}")
    elif not w.target.mla and (kv % s.tp if kv >= s.tp else s.tp % kv):
        yield Refusal("tp-kv-heads-indivisible", f"{kv} KV heads and TP {s.tp}: neither divides the other")


def _quantised(w: Work, shape: Shape) -> Iterator[Refusal]:
    scheme = w.scheme
    if scheme is None or w.tp == 1 or shape.moe is not None:
        return
    width = shape.intermediate // w.tp
    if scheme.block and width % scheme.block[1]:
        yield Refusal(
            "tp-fp8-block-indivisible", f"{width} columns a rank do not divide by {scheme.block[1]}"
        )
    elif scheme.group > 0 and width % scheme.group:
        text = f"{width} columns a rank do not divide by the group size {scheme.group}"
        yield Refusal("tp-quant-group-indivisible", text)


def _speculation(s: Scenario, w: Work) -> Iterator[Refusal]:
    if s.method not in KNOWN_METHODS:
        yield Refusal("spec-method-unsupported", f"speculative method {s.method!r}")
        return
    draft_tp = s.speculative.get("draft_tensor_parallel_size")
    if draft_tp is not None and draft_tp not in {1, s.tp}:
        yield Refusal("tp-draft-size-invalid", f"draft TP {draft_tp}: only 1 or the target's TP {s.tp}")
    elif s.method == "draft_model" and draft_tp not in {None, s.tp}:
        yield Refusal(
            "tp-draft-size-invalid", f"draft TP {draft_tp}: a draft model needs the target's TP {s.tp}"
        )
    if w.draft is None:
        if s.needs_draft and s.method != "mtp":
            yield Refusal("spec-draft-missing", f"method {s.method} names no draft model configuration")
        return
    yield from _pair(s, w, w.draft)


def _pair(s: Scenario, w: Work, draft: Shape) -> Iterator[Refusal]:
    if s.method == "draft_model":
        if draft.vocab != w.target.vocab and not s.speculative.get("use_heterogeneous_vocab"):
            text = f"draft vocabulary {draft.vocab}, target {w.target.vocab}"
            yield Refusal("spec-vocab-mismatch", text)
        if draft.heads % s.tp:
            yield Refusal(
                "tp-heads-indivisible", f"the draft's {draft.heads} heads do not divide by TP {s.tp}"
            )
        return
    expected = draft.target_hidden if s.method == "eagle3" else draft.hidden
    if w.reads_hidden and expected != w.target.hidden:
        text = f"the head reads hidden states of {expected}, the target gives {w.target.hidden}"
        yield Refusal("spec-hidden-size-mismatch", text)
    if draft.heads % s.tp:
        yield Refusal("tp-heads-indivisible", f"the draft's {draft.heads} heads do not divide by TP {s.tp}")
