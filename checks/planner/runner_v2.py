"""Memory of the second model runner (vLLM 0.25): what it holds, its profile run, its warm-up.

What it holds from its start (sampler statistics, masks) is torch memory outside "Model loading took" and is
already there when profiling begins, so the engine's budget does not see it. Nor does it see the warm-up, in
which every sequence slot samples with every sampling feature on. Sources: v1/worker/gpu/model_runner.py,
warmup.py, sample/{sampler,penalties,logit_bias,bad_words,logprob}.py, structured_outputs.py,
spec_decode/speculator.py, spec_decode/autoregressive/speculator.py, spec_decode/rejection_sampler.py.
"""

from checks.planner.allocator import Allocator
from checks.planner.layers import compile_head, compile_target, forward, logits
from checks.planner.units import cdiv
from checks.planner.work import Work

__all__ = ["held", "profile", "warm_up"]

#: Rows of per-request tables: allowed tokens, logit bias, stop tokens, bad words, logprob ids (int32 each).
_TABLE_COLUMNS = 1024 + 2 * 1024 + 128 + 1024 + 128 + 128
_LOGPROB_CHUNK = 1024


def held(w: Work) -> dict[str, int]:
    """Buffers that live as long as the engine, by name, in bytes."""
    vocab, seqs = w.target.vocab, w.seqs
    found = {
        "output token counts": seqs * vocab * 4,
        "prompt token mask": seqs * cdiv(vocab, 32) * 4,
        "grammar bitmask": seqs * w.query_len * cdiv(vocab, 32) * 4,
        "sampling tables": seqs * _TABLE_COLUMNS * 4,
        "block tables": 2 * seqs * cdiv(w.max_len, w.block_size) * 4,
        "step inputs": w.batched_tokens * (4 + 8 + 1 + 8),
    }
    if w.draft is not None:
        found["draft hidden states"] = w.batched_tokens * w.draft.hidden * w.draft.dtype_bytes
        if w.probabilistic:
            found["draft logits"] = seqs * w.k * w.draft.vocab * 4
    return found


def profile(a: Allocator, w: Work) -> None:
    """The dummy pass of all batched tokens; ``a.peak_live`` is what the engine reserves for activations."""
    compile_target(a, w, w.batched_tokens)
    a.take("workspace", w.workspace)
    _forward(a, w, w.batched_tokens)
    _propose(a, w, w.batched_tokens, w.profile_reqs, compiling=True)
    a.drop(*_aux(w))
    _sample(a, w, w.profile_reqs, probe=True)
    a.drop("t.out")


def warm_up(a: Allocator, w: Work, blocks: int) -> None:
    """Prefill, then decode, with as many requests as fit: the largest batch sampling will ever see."""
    prompt = w.query_len + 1
    per_request = cdiv(prompt + w.query_len, w.block_size)
    reqs = max(1, min(w.seqs, w.batched_tokens // prompt, (blocks - 1) // per_request))
    a.take("workspace", w.workspace)
    _forward(a, w, reqs * prompt)
    _sample(a, w, reqs)
    _prompt_logprobs(a, w, reqs * prompt)
    _propose(a, w, reqs * prompt, reqs)
    a.drop("t.out", *_aux(w))
    _forward(a, w, reqs * w.query_len)
    _sample(a, w, reqs * w.query_len, drafts=w.method != "none")
    _propose(a, w, reqs * w.query_len, reqs)
    a.drop("t.out", *_aux(w))


def _aux(w: Work) -> list[str]:
    count = w.draft.aux_layers if w.draft is not None and w.method == "eagle3" else 0
    return [f"t.aux{i}" for i in range(count)]


def _forward(a: Allocator, w: Work, n: int) -> None:
    forward(a, w.target, w.tp, n, "t", aux=len(_aux(w)))


def _sample(a: Allocator, w: Work, rows: int, *, probe: bool = False, drafts: bool = False) -> None:
    """Logits and their fp32 copy, then top-k and top-p.

    In place with one scratch row a compute unit, or by FlashInfer (flashinfer 0.6.13 sampling.py), which
    makes masked logits and probabilities; rejection of drafts always goes in place. The profile's probe
    filters nothing.
    """
    full = rows * w.target.vocab * 4
    a.take("picked", rows * w.target.hidden * w.target.dtype_bytes)
    logits(a, "logits", rows, w.target, w.tp)
    a.take("fp32", full)
    if w.flashinfer_sampler and not drafts and not probe:
        a.take("masked", full)
        a.take("probs", full)
        a.drop("masked", "probs")
    elif not probe and "top-k rows" not in a.held:
        a.take("top-k rows", min(w.compute_units, rows) * w.target.vocab * 4)
    a.take("block argmax", rows * cdiv(w.target.vocab, 1024) * 8)
    a.take("block max", rows * cdiv(w.target.vocab, 1024) * 4)
    a.drop("block argmax", "block max", "fp32", "logits", "picked")


def _prompt_logprobs(a: Allocator, w: Work, n: int) -> None:
    for start in range(0, n, _LOGPROB_CHUNK):
        logits(a, "next chunk", min(_LOGPROB_CHUNK, n - start), w.target, w.tp)
        a.rename("next chunk", "chunk")
    a.drop("chunk")


def _propose(a: Allocator, w: Work, n: int, reqs: int, *, compiling: bool = False) -> None:
    """Draft tokens for every request: one pass over the step's tokens, then k-1 passes of one token each."""
    if w.draft is None:
        return
    width = w.draft.hidden * w.draft.dtype_bytes
    if w.method == "eagle3":
        a.take("joined", n * w.draft.aux_layers * w.draft.target_hidden * w.draft.dtype_bytes)
        a.take("combined", n * width)
        a.drop("joined")
    if compiling:
        compile_head(a, w, n)
    for tokens in (n, reqs) if w.k > 1 else (n,):
        forward(a, w.draft, w.tp, tokens, "d", fused=2 * w.draft.hidden if w.reads_hidden else 0)
        a.take("picked", reqs * width)
        _draft_logits(a, w, reqs)
        a.drop("picked", "d.out")
    a.drop("combined")


def _draft_logits(a: Allocator, w: Work, reqs: int) -> None:
    if w.draft is None:
        return
    vocab = w.draft.draft_vocab if w.own_head else w.target.vocab
    logits(a, "draft logits", reqs, w.draft, w.tp, vocab=vocab)
    if w.method == "eagle3":
        a.take("target ids", reqs * w.draft.vocab * w.draft.dtype_bytes)
    a.drop("draft logits", "target ids")
