"""The order in which one forward pass allocates, as the engine's Python does it.

Sources: vLLM 0.25.1 models/llama.py, qwen2.py, llama_eagle.py, llama_eagle3.py, layers/layernorm.py (fused
add and norm in place), layers/fused_moe/fused_moe.py, layers/logits_processor.py,
distributed/device_communicators/base_device_communicator.py (all_gather).
"""

from checks.planner.allocator import Allocator
from checks.planner.shapes import Shape
from checks.planner.units import MIB, cdiv, round_up
from checks.planner.weights import VOCAB_PADDING, vocab_bytes
from checks.planner.work import Work

__all__ = ["compile_head", "compile_target", "forward", "logits"]

#: The compiler's benchmark clears the L2 cache with a buffer of its size: 60 MiB on Hopper.
_L2_FLUSH = 60 * MIB


def forward(a: Allocator, shape: Shape, tp: int, n: int, tag: str, *, aux: int = 0, fused: int = 0) -> None:
    """A pass of ``n`` tokens; leaves ``{tag}.out`` and ``{tag}.aux{i}`` allocated.

    Layers are alike, so two stand for all. The residual lives where the first layer's input was, norms work
    in place. ``fused``: width of what a head joins before its first layer.
    """
    hidden = n * shape.hidden * shape.dtype_bytes
    a.take(f"{tag}.residual", hidden)
    if fused:
        a.take(f"{tag}.cat", n * fused * shape.dtype_bytes)
        a.replace(f"{tag}.residual", hidden)
        a.drop(f"{tag}.cat")
    for i in range(aux):
        a.take(f"{tag}.aux{i}", hidden)
    a.take(f"{tag}.out", hidden)
    for _ in range(min(shape.layers, 2)):
        _attention(a, shape, tp, n)
        _mlp(a, shape, tp, n)
        a.drop("attn")
        a.rename("mlp", f"{tag}.out")
    a.drop(f"{tag}.residual")


def _attention(a: Allocator, shape: Shape, tp: int, n: int) -> None:
    width, heads = shape.dtype_bytes, shape.heads // tp
    if shape.mla:
        out_dim = shape.mla.v_dim
        rows = heads * (2 * (shape.mla.nope_dim + shape.mla.rope_dim) + shape.mla.v_dim)
    else:
        out_dim = shape.head_dim
        rows = (heads + 2 * max(1, shape.kv_heads // tp)) * shape.head_dim
    a.take("qkv", n * rows * width)
    a.take("core", n * heads * out_dim * width)
    a.take("attn", n * shape.hidden * width)
    if tp > 1:
        a.replace("attn", n * shape.hidden * width)
    a.drop("qkv", "core")


def _mlp(a: Allocator, shape: Shape, tp: int, n: int) -> None:
    width = shape.dtype_bytes
    hidden = n * shape.hidden * width
    moe = shape.moe
    if moe is not None:
        rows = n * moe.top_k
        inner = max(2 * moe.intermediate // tp, shape.hidden)
        a.take("cache13", rows * inner * width)
        a.take("cache2", rows * moe.intermediate // tp * width)
        a.take("mlp", hidden)
        a.drop("cache13", "cache2")
    else:
        inner = shape.intermediate // tp
        a.take("gate_up", n * 2 * inner * width)
        a.take("act", n * inner * width)
        if not shape.keeps_gate_up:
            a.drop("gate_up")
        a.take("mlp", hidden)
        a.drop("act", "gate_up")
    if tp > 1:
        a.replace("mlp", hidden)


def logits(a: Allocator, name: str, n: int, shape: Shape, tp: int, *, vocab: int | None = None) -> None:
    """The logits of ``n`` rows, gathered from all ranks: gathered and put in order, both whole."""
    rows = round_up(vocab or shape.vocab, VOCAB_PADDING)
    local = n * cdiv(rows, tp) * shape.dtype_bytes
    if tp == 1:
        a.take(name, local)
        return
    a.take("local", local)
    a.take("gathered", local * tp)
    a.take(name, local * tp)
    a.drop("local", "gathered")


def compile_target(a: Allocator, w: Work, n: int) -> None:
    """The compiler's example arguments for the first piece: the embedding table and two hidden states."""
    if w.eager or not w.cold_compile:
        return
    a.take("example table", vocab_bytes(w.target.vocab, w.target, w.tp))
    a.take("example hidden", 2 * n * w.target.hidden * w.target.dtype_bytes)
    a.drop("example table", "example hidden")


def compile_head(a: Allocator, w: Work, n: int) -> None:
    """The compiler's benchmark of a head's first kernel, run while the engine profiles, once per cache.

    It makes random arguments for the fused lookup-and-join: a copy of the whole embedding table, the hidden
    states, one joined output for EAGLE, two for EAGLE-3 (embedding and hidden are normed first), and a buffer
    to flush the L2 cache. With TP the lookup ends in an all-reduce and is not fused. Measured by allocation
    trace; vLLM 0.25.1 config/compilation.py sets combo_kernels and benchmark_combo_kernel.
    """
    head = w.draft
    if head is None or w.eager or not w.cold_compile or w.tp > 1 or not w.reads_hidden:
        return
    hidden = n * head.hidden * head.dtype_bytes
    a.take("bench table", vocab_bytes(head.vocab, head, 1))
    a.take("bench hidden", hidden)
    a.take("bench joined", 2 * hidden * (2 if w.method == "eagle3" else 1))
    a.take("bench flush", _L2_FLUSH)
    a.drop("bench table", "bench hidden", "bench joined", "bench flush")
