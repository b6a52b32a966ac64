"""Weights on one rank: every parameter the engine allocates, from the shape alone or from tensor headers.

Fused as the engine fuses them (qkv, gate_up), because the allocator rounds per parameter. Sources: vLLM
0.25.1 model_executor/layers/linear.py (sharding), vocab_parallel_embedding.py (padding to 64),
models/llama.py, qwen2.py, deepseek_v2.py, llama_eagle.py, llama_eagle3.py, rotary_embedding/base.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from checks.planner.quant import Scheme
from checks.planner.shapes import Shape
from checks.planner.units import allocated, cdiv, round_up

__all__ = ["Param", "draft_params", "model_params", "total"]

VOCAB_PADDING = 64


@dataclass(frozen=True)
class Param:
    """``count`` parameters of ``nbytes`` each on one rank."""

    name: str
    nbytes: int
    count: int = 1


def total(params: list[Param], *, unsplit: bool) -> int:
    """Bytes the allocator counts for all of them."""
    return sum(allocated(p.nbytes, unsplit=unsplit) * p.count for p in params)


def model_params(shape: Shape, tp: int, scheme: Scheme | None) -> list[Param]:
    """All parameters of a decoder model on one of ``tp`` ranks, its rotary table included."""
    found = list(_embedding(shape, tp))
    found += _layers(shape, tp, scheme)
    found.append(Param("norm", shape.hidden * shape.dtype_bytes))
    found.append(rotary(shape))
    return _merge(found)


def _layers(shape: Shape, tp: int, scheme: Scheme | None) -> list[Param]:
    """Every layer's parameters. Layers are alike by kind, unless a quantisation leaves some out by number."""
    if scheme is not None and any(c.isdigit() for pattern in scheme.skip for c in pattern):
        numbers = [(n, 1) for n in range(shape.layers)]
    else:
        sparse = [n for n in range(shape.layers) if shape.moe is not None and shape.moe.is_sparse(n)]
        dense = [n for n in range(shape.layers) if n not in set(sparse)]
        numbers = [(kind[0], len(kind)) for kind in (dense, sparse) if kind]
    return [
        Param(p.name, p.nbytes, p.count * times)
        for n, times in numbers
        for p in _layer(shape, tp, scheme, n, qkv_inputs=shape.hidden)
    ]


def rotary(shape: Shape) -> Param:
    """Cos and sin for every position: [max_position_embeddings, rotary_dim] in the model's dtype."""
    return Param("rotary", shape.max_positions * shape.rotary_dim * shape.dtype_bytes)


def vocab_bytes(rows: int, shape: Shape, tp: int) -> int:
    return cdiv(round_up(rows, VOCAB_PADDING), tp) * shape.hidden * shape.dtype_bytes


def _embedding(shape: Shape, tp: int) -> Iterator[Param]:
    size = vocab_bytes(shape.vocab, shape, tp)
    yield Param("embed_tokens", size)
    if not shape.tied:
        yield Param("lm_head", size)


def _linear(
    name: str, rows: int, cols: int, shape: Shape, scheme: Scheme | None, *, bias: bool = False
) -> list[Param]:
    if scheme is None or not scheme.covers(name):
        found = [Param(name, rows * cols * shape.dtype_bytes)]
    else:
        found = [Param(f"{name}.{i}", n) for i, n in enumerate(scheme.linear_bytes(rows, cols))]
    if bias:
        found.append(Param(f"{name}.bias", rows * shape.dtype_bytes))
    return found


def _layer(shape: Shape, tp: int, scheme: Scheme | None, layer: int, *, qkv_inputs: int) -> list[Param]:
    prefix = f"layers.{layer}"
    norms = [Param("norm", shape.hidden * shape.dtype_bytes, 2)]
    attention = _mla(shape, tp, scheme, prefix) if shape.mla else _gqa(shape, tp, scheme, prefix, qkv_inputs)
    sparse = shape.moe is not None and shape.moe.is_sparse(layer)
    mlp = _experts(shape, tp, scheme, prefix) if sparse else _dense(shape, tp, scheme, prefix)
    return norms + attention + mlp


def _gqa(shape: Shape, tp: int, scheme: Scheme | None, prefix: str, inputs: int) -> list[Param]:
    heads, kv = shape.heads // tp, max(1, shape.kv_heads // tp)
    rows = (heads + 2 * kv) * shape.head_dim
    found = _linear(f"{prefix}.self_attn.qkv_proj", rows, inputs, shape, scheme, bias=shape.qkv_bias)
    found += _linear(f"{prefix}.self_attn.o_proj", shape.hidden, heads * shape.head_dim, shape, scheme)
    if shape.qk_norm:
        found.append(Param("qk_norm", shape.head_dim * shape.dtype_bytes, 2))
    return found


def _mla(shape: Shape, tp: int, scheme: Scheme | None, prefix: str) -> list[Param]:
    mla = shape.mla
    if mla is None:
        return []
    heads = shape.heads // tp
    q_rows = heads * (mla.nope_dim + mla.rope_dim)
    latent = mla.kv_rank + mla.rope_dim
    at = f"{prefix}.self_attn"
    if mla.q_rank:
        found = _linear(f"{at}.fused_qkv_a_proj", mla.q_rank + latent, shape.hidden, shape, scheme)
        found += _linear(f"{at}.q_b_proj", q_rows, mla.q_rank, shape, scheme)
    else:
        found = _linear(f"{at}.q_proj", q_rows, shape.hidden, shape, scheme)
        found += _linear(f"{at}.kv_a_proj_with_mqa", latent, shape.hidden, shape, scheme)
    found += _linear(f"{at}.kv_b_proj", heads * (mla.nope_dim + mla.v_dim), mla.kv_rank, shape, scheme)
    found += _linear(f"{at}.o_proj", shape.hidden, heads * mla.v_dim, shape, scheme)
    # The decode path keeps kv_b_proj a second time, unquantised and transposed (W_UK_T, W_UV).
    absorbed = heads * (mla.nope_dim + mla.v_dim) * mla.kv_rank * shape.dtype_bytes
    return [*found, Param(f"{at}.absorbed", absorbed if scheme else 0)]


def _dense(shape: Shape, tp: int, scheme: Scheme | None, prefix: str) -> list[Param]:
    width = shape.intermediate // tp
    found = _linear(f"{prefix}.mlp.gate_up_proj", 2 * width, shape.hidden, shape, scheme)
    return found + _linear(f"{prefix}.mlp.down_proj", shape.hidden, width, shape, scheme)


def _experts(shape: Shape, tp: int, scheme: Scheme | None, prefix: str) -> list[Param]:
    moe = shape.moe
    if moe is None:
        return []
    at = f"{prefix}.mlp"
    width = moe.intermediate // tp
    found = [Param(f"{at}.gate", moe.experts * shape.hidden * shape.dtype_bytes)]
    for name, rows, cols in (("w13", 2 * width, shape.hidden), ("w2", shape.hidden, width)):
        one = _linear(f"{at}.experts.{name}", rows, cols, shape, scheme)
        found += [Param(p.name, p.nbytes * moe.experts) for p in one]
    if moe.shared_intermediate:
        shared = moe.shared_intermediate // tp
        found += _linear(f"{at}.shared_expert.gate_up_proj", 2 * shared, shape.hidden, shape, scheme)
        found += _linear(f"{at}.shared_expert.down_proj", shape.hidden, shared, shape, scheme)
    return found


def draft_params(
    shape: Shape,
    target: Shape,
    method: str,
    tp: int,
    scheme: Scheme | None,
    *,
    own_head: bool,
    own_embed: bool,
) -> list[Param]:
    """Parameters that a draft adds. ``own_*``: the head has its own copy, else it uses the target's.

    ``fc`` is replicated on every rank; everything else is split like the target.
    """
    if method == "draft_model":
        return model_params(shape, tp, scheme)
    found: list[Param] = []
    if own_embed:
        found.append(Param("draft.embed_tokens", vocab_bytes(shape.vocab, shape, tp)))
    if own_head:
        found.append(Param("draft.lm_head", vocab_bytes(shape.draft_vocab, shape, tp)))
    eagle3 = method == "eagle3"
    fc_inputs = shape.aux_layers * shape.target_hidden if eagle3 else 2 * shape.hidden
    found += _linear("fc", shape.hidden, fc_inputs, shape, scheme)
    for layer in range(shape.layers):
        inputs = 2 * shape.hidden if eagle3 and layer == 0 else shape.hidden
        found += _layer(shape, tp, scheme, layer, qkv_inputs=inputs)
    if eagle3:
        found.append(Param("d2t", shape.draft_vocab * 8))
        found.append(Param("draft.norm", shape.hidden * shape.dtype_bytes, 2))
    if shape.rope_key != target.rope_key or shape.rotary_dim != target.rotary_dim:
        found.append(rotary(shape))
    return _merge(found)


def _merge(params: list[Param]) -> list[Param]:
    """Equal sizes of one kind become one entry; layer numbers go."""
    seen: dict[tuple[str, int], int] = {}
    for p in params:
        key = (".".join(part for part in p.name.split(".") if not part.isdigit()), p.nbytes)
        seen[key] = seen.get(key, 0) + p.count
    return [Param(name, nbytes, count) for (name, nbytes), count in seen.items() if nbytes]
