"""Weights on one rank from a checkpoint's own tensor headers: names, shapes and sizes as stored.

More exact than the configuration for quantised and unusual checkpoints. The sharding rules are the engine's:
vocabulary rows padded to 64 and split, K and V repeated when there are fewer KV heads than ranks, norms,
routers, latent projections and a head's `fc` whole on every rank, everything else split.
"""

import re
from collections.abc import Mapping
from typing import Protocol

from checks.planner.shapes import Shape
from checks.planner.units import cdiv, round_up
from checks.planner.weights import VOCAB_PADDING, Param, rotary

__all__ = ["Tensor", "params_from_tensors"]


_WIDE = {"F32": 4, "F64": 8}


class Tensor(Protocol):
    """What a safetensors header says of one tensor."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...


_IGNORED = re.compile(r"inv_freq|rotary_emb|\bt2d\b|mask_hidden|masked_bias")
_VOCAB = re.compile(r"(embed_tokens|lm_head|word_embeddings|wte|embed_out|output_layer)\.weight$")
_WHOLE = re.compile(
    r"norm|\bd2t\b|(^|\.)fc\.|q_a_proj|kv_a_proj|\bgate\.(weight|bias|e_score)|router|e_score_correction"
)
_KV = re.compile(r"\.(k_proj|v_proj|key|value)\.")
_ROW = re.compile(r"\.(o_proj|down_proj|out_proj|dense_4h_to_h)\.")
_FUSED = (
    (re.compile(r"\.experts\.\d+\.(gate_proj|up_proj|w1|w3)\."), ".experts.w13."),
    (re.compile(r"\.experts\.\d+\.(down_proj|w2)\."), ".experts.w2."),
    (re.compile(r"\.(q_proj|k_proj|v_proj)\."), ".qkv_proj."),
    (re.compile(r"\.(gate_proj|up_proj)\."), ".gate_up_proj."),
    (re.compile(r"\.(q_a_proj|kv_a_proj_with_mqa)\."), ".qkv_a_proj."),
)


def params_from_tensors(
    tensors: Mapping[str, Tensor], shape: Shape, tp: int, *, drop: tuple[str, ...] = ()
) -> list[Param]:
    """Every parameter on one of ``tp`` ranks, fused as the engine fuses. ``drop``: parts shared elsewhere."""
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        if _IGNORED.search(name) or any(part in name for part in drop):
            continue
        if shape.tied and "lm_head" in name:
            continue
        fused = _fuse(name)
        sizes[fused] = sizes.get(fused, 0) + _on_rank(name, tensor, shape, tp)
    return [*(Param(name, nbytes) for name, nbytes in sizes.items()), rotary(shape)]


def _fuse(name: str) -> str:
    for pattern, fused in _FUSED:
        if pattern.search(name):
            return pattern.sub(fused, name)
    return name


def _on_rank(name: str, tensor: Tensor, shape: Shape, tp: int) -> int:
    nbytes = _run_bytes(name, tensor, shape)
    if _VOCAB.search(name) and tensor.shape:
        row = nbytes // tensor.shape[0]
        return cdiv(round_up(tensor.shape[0], VOCAB_PADDING), tp) * row
    if not tensor.shape or _WHOLE.search(name):
        return nbytes
    if _KV.search(name):
        return nbytes * max(1, shape.kv_heads // tp) // shape.kv_heads
    if len(tensor.shape) == 1 and _ROW.search(name):
        return nbytes
    return cdiv(nbytes, tp)


def _run_bytes(name: str, tensor: Tensor, shape: Shape) -> int:
    """A float32 checkpoint is cast to the run's dtype; scales and quantised data stay as stored."""
    width = _WIDE.get(tensor.dtype)
    if width is None or "scale" in name or "zero" in name or len(tensor.shape) < 2:
        return tensor.nbytes
    return tensor.nbytes * shape.dtype_bytes // width
