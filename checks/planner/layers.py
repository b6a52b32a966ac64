"""The order in which one forward pass allocates, as the engine's Python does it.

Sources: vLLM 0.25.1 models/llama.py, qwen2.py, llama_eagle.py, llama_eagle3.py, layers/layernorm.py (the
fused add and norm returns new tensors), layers/fused_moe/fused_moe.py, layers/logits_processor.py,
distributed/device_communicators/base_device_communicator.py (all_gather).
"""

from checks.planner.allocator import Allocator
from checks.planner.shapes import Shape
from checks.planner.units import cdiv, round_up
from checks.planner.weights import VOCAB_PADDING

__all__ = ["forward", "logits"]


def forward(a: Allocator, shape: Shape, tp: int, n: int, tag: str, *, aux: int = 0, fused: int = 0) -> None:
    """A pass of ``n`` tokens; leaves ``{tag}.out`` and ``{tag}.aux{i}`` allocated.

    Layers are alike, so two stand for all. ``fused``: width of what the head joins before its first layer.
    """
    hidden = n * shape.hidden * shape.dtype_bytes
    a.take(f"{tag}.x", hidden)
    if fused:
        a.take(f"{tag}.cat", n * fused * shape.dtype_bytes)
        a.replace(f"{tag}.x", hidden)
        a.drop(f"{tag}.cat")
    for i in range(aux):
        a.take(f"{tag}.aux{i}", hidden)
    for layer in range(min(shape.layers, 2)):
        _layer(a, shape, tp, n, tag, first=layer == 0)
    a.take(f"{tag}.out", hidden)
    a.drop(f"{tag}.x", f"{tag}.r")


def _layer(a: Allocator, shape: Shape, tp: int, n: int, tag: str, *, first: bool) -> None:
    width = shape.dtype_bytes
    hidden = n * shape.hidden * width
    a.take("norm", hidden)
    if not first:
        a.take("residual", hidden)
    _attention(a, shape, tp, n)
    a.drop("norm")
    a.take("norm2", hidden)
    a.take("residual2", hidden)
    a.drop("attn", "residual")
    _mlp(a, shape, tp, n)
    a.drop("norm2")
    a.rename("mlp", f"{tag}.x")
    a.rename("residual2", f"{tag}.r")


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
        a.drop("gate_up")
        a.take("mlp", hidden)
        a.drop("act")
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
