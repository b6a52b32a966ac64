"""Memory of the first model runner: what it holds, its profile run, its warm-up.

Its profile run includes the sampler and, with speculation, the rejection sampler for every sequence slot, so
these are inside the engine's budget; at run time a step with k drafts a request needs more. Sources: vLLM
0.25.1 v1/worker/gpu_model_runner.py (_dummy_run, _dummy_sampler_run), v1/sample/sampler.py,
v1/sample/rejection_sampler.py, v1/sample/ops/topk_topp_sampler.py, v1/spec_decode/llm_base_proposer.py.
"""

from checks.planner.allocator import Allocator
from checks.planner.layers import compile_head, compile_target, forward, logits
from checks.planner.units import cdiv
from checks.planner.work import Work

__all__ = ["held", "profile", "warm_up"]


def held(w: Work) -> dict[str, int]:
    """Buffers that live as long as the engine, by name, in bytes."""
    width = w.target.dtype_bytes
    found = {
        "input embeddings": w.batched_tokens * w.target.hidden * width,
        "block tables": w.seqs * cdiv(w.max_len, w.block_size) * 4,
        "step inputs": w.batched_tokens * (4 + 8 + 8 + 8 + 1 + 8),
    }
    if w.draft is not None:
        found["draft hidden states"] = w.batched_tokens * w.draft.hidden * w.draft.dtype_bytes
        found["draft input embeddings"] = found["draft hidden states"]
    return found


def profile(a: Allocator, w: Work) -> None:
    """The dummy pass of all batched tokens and the sampler for every slot."""
    compile_target(a, w, w.batched_tokens)
    a.take("workspace", w.workspace)
    _pass(a, w, w.batched_tokens)
    _sample(a, w, w.profile_reqs)
    a.drop("picked", "t.out")


def warm_up(a: Allocator, w: Work, blocks: int) -> None:  # noqa: ARG001 - one signature for both runners
    """After the graphs: one token for every slot, then the sampler again, to keep its buffers."""
    a.take("workspace", w.workspace)
    _pass(a, w, w.profile_reqs)
    _sample(a, w, w.profile_reqs)
    a.drop("picked", "t.out")


def _pass(a: Allocator, w: Work, n: int) -> None:
    aux = w.draft.aux_layers if w.draft is not None and w.method == "eagle3" else 0
    forward(a, w.target, w.tp, n, "t", aux=aux)
    a.drop(*(f"t.aux{i}" for i in range(aux)))
    if w.draft is not None:
        if n == w.batched_tokens:
            compile_head(a, w, n)
        forward(a, w.draft, w.tp, n, "d", fused=2 * w.draft.hidden if w.reads_hidden else 0)
        a.drop("d.out")
    a.take("picked", w.profile_reqs * w.target.hidden * w.target.dtype_bytes)


def _sample(a: Allocator, w: Work, rows: int) -> None:
    half = rows * w.target.vocab * w.target.dtype_bytes
    a.take("random hidden", rows * w.target.hidden * w.target.dtype_bytes)
    logits(a, "logits", rows, w.target, w.tp)
    _sampler(a, w, rows)
    if w.method != "none":
        a.take("spec logits", 2 * half)
        a.drop("logits")
        _rejection(a, w, rows, half)
    a.drop("logits", "spec logits", "random hidden")


def _sampler(a: Allocator, w: Work, rows: int) -> None:
    """fp32 copy, top-k/top-p in place, softmax, exponential noise."""
    full = rows * w.target.vocab * 4
    a.take("fp32", full)
    if "top-k rows" not in a.held:
        a.take("top-k rows", min(w.compute_units, rows) * w.target.vocab * 4)
    a.take("probs", full)
    a.take("noise", full)
    a.drop("probs", "noise", "fp32")


def _rejection(a: Allocator, w: Work, rows: int, half: int) -> None:
    """The dummy step has one draft a request, whatever k is."""
    full = rows * w.target.vocab * 4
    a.take("bonus", half)
    a.take("bonus raw", full)
    _sampler(a, w, rows)
    a.take("target half", half)
    a.take("target raw", full)
    a.drop("target half")
    for name in ("target", "probs", "noise", "inverse noise"):
        a.take(name, full)
    a.drop("inverse noise", "noise", "probs", "target", "target raw", "bonus raw", "bonus")
