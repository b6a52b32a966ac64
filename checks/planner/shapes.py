"""A model's shape, read from its config.json: what the memory formulas need and nothing else.

Accepts the decoded config of dense, GQA, MLA, MoE, sliding-window and hybrid decoder models, nested
(`text_config`) or flat. A field that cannot be had is an InventoryError naming it, never a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.planner.layer_kinds import layer_kinds, window_of
from inventory.errors import InventoryError

__all__ = ["DTYPE_BYTES", "Mla", "Moe", "Shape", "shape_of"]

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}

#: Attention biases that the config does not state: the class has them. Source: vLLM 0.25.1 models/*.py.
_QKV_BIAS = {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"}
_QK_NORM = {"qwen3", "qwen3_moe"}
#: Configuration classes whose own default ties head and embedding, so that their files don't say it.
_TIED = ("gemma", "cohere", "gpt2", "opt", "bloom")
#: models/qwen2.py and its users: `gate_up` is a variable of its own until the MLP returns.
_NAMES_GATE_UP = "qwen"


@dataclass(frozen=True)
class Moe:
    """Experts of a sparse layer. ``dense_layers`` first layers have an ordinary MLP."""

    experts: int
    intermediate: int
    shared_intermediate: int
    dense_layers: int
    top_k: int
    every: int = 1

    def is_sparse(self, layer: int) -> bool:
        return layer >= self.dense_layers and (layer + 1) % self.every == 0


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: ranks and the three head widths."""

    q_rank: int | None
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int


@dataclass(frozen=True)
class Shape:
    """Sizes in elements. ``dtype_bytes`` is the width of an unquantised weight and of an activation."""

    architecture: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    draft_vocab: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    max_positions: int
    rotary_dim: int
    rope_key: tuple[Any, ...]
    dtype_bytes: int
    window: int | None
    #: Per layer: "full", "window" or "state" (linear attention, Mamba: no KV that grows with tokens).
    layer_kinds: tuple[str, ...]
    moe: Moe | None
    mla: Mla | None
    target_hidden: int
    aux_layers: int
    quantization: Mapping[str, Any] | None

    @property
    def keeps_gate_up(self) -> bool:
        """True where the MLP's code still names the wide tensor while it makes its output."""
        return self.model_type.startswith(_NAMES_GATE_UP)

    @property
    def is_moe(self) -> bool:
        return self.moe is not None


def shape_of(config: Mapping[str, Any], *, source: str = "config.json") -> Shape:
    """Read a decoded config.json. Raises InventoryError naming ``source`` and the field it lacks."""
    if not isinstance(config, Mapping) or not config:
        raise InventoryError(f"{source} is not a model configuration", hint="give the model's config.json")
    text = _text(config)
    read = _Reader(text, source)
    hidden, heads = read.positive("hidden_size", "n_embd", "d_model"), read.positive("num_attention_heads")
    layers = read.positive("num_hidden_layers", "n_layer", "num_layers")
    kinds = layer_kinds(text, layers)
    model_type = str(text.get("model_type", ""))
    head_dim = read.optional("head_dim") or max(1, hidden // heads)
    mla = _mla(text)
    vocab = read.positive("vocab_size")
    return Shape(
        architecture=_architecture(config, text),
        model_type=model_type,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=read.optional("num_key_value_heads", "num_kv_heads") or heads,
        head_dim=head_dim,
        intermediate=_intermediate(read, text, hidden),
        vocab=vocab,
        draft_vocab=read.optional("draft_vocab_size") or vocab,
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", _ties(model_type)))),
        qkv_bias=bool(text.get("attention_bias", text.get("qkv_bias", model_type in _QKV_BIAS))),
        qk_norm=bool(text.get("qk_norm", model_type in _QK_NORM)),
        max_positions=read.optional("max_position_embeddings", "n_positions") or 2048,
        rotary_dim=_rotary_dim(text, head_dim, mla),
        rope_key=_rope_key(text),
        dtype_bytes=DTYPE_BYTES.get(_dtype(config, text), 2),
        window=window_of(text, kinds),
        layer_kinds=kinds,
        moe=_moe(text),
        mla=mla,
        target_hidden=read.optional("target_hidden_size") or hidden,
        aux_layers=_aux_layers(text),
        quantization=config.get("quantization_config") or text.get("quantization_config"),
    )


class _Reader:
    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config = config
        self.source = source

    def optional(self, *names: str) -> int | None:
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise InventoryError(f"{self.source}: {name} is {value!r}, not a positive whole number")
            return value
        return None

    def positive(self, *names: str) -> int:
        value = self.optional(*names)
        if value is None:
            raise InventoryError(
                f"{self.source} has no {names[0]}",
                hint="this reads the config.json of a decoder language model or a draft head",
            )
        return value


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model; speculators nest it under transformer_layer_config."""
    for key in ("text_config", "llm_config", "transformer_layer_config"):
        inner = config.get(key)
        if isinstance(inner, Mapping) and "num_hidden_layers" in inner:
            rest = {k: v for k, v in config.items() if k not in {"model_type", "architectures"}}
            return {**rest, **inner}
    return config


def _architecture(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    names = config.get("architectures") or text.get("architectures") or []
    return str(names[0]) if isinstance(names, list) and names else ""


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    value = text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or config.get("dtype")
    return str(value or "bfloat16").removeprefix("torch.")


def _ties(model_type: str) -> bool:
    return model_type.startswith(_TIED)


def _intermediate(read: _Reader, text: Mapping[str, Any], hidden: int) -> int:
    found = read.optional("intermediate_size", "n_inner", "ffn_hidden_size")
    if found is None and text.get("moe_intermediate_size"):
        return int(text["moe_intermediate_size"])
    return found or 4 * hidden


def _moe(text: Mapping[str, Any]) -> Moe | None:
    experts = next(
        (text[k] for k in ("num_experts", "n_routed_experts", "num_local_experts") if text.get(k)), None
    )
    if not experts:
        return None
    width = int(text.get("moe_intermediate_size") or text.get("intermediate_size") or 0)
    shared = int(text.get("shared_expert_intermediate_size") or 0)
    if not shared:
        shared = int(text.get("n_shared_experts") or 0) * width
    dense = text.get("first_k_dense_replace") or 0
    every = int(text.get("decoder_sparse_step") or text.get("moe_layer_freq") or 1)
    top_k = int(text.get("num_experts_per_tok") or text.get("experts_per_token") or 1)
    return Moe(int(experts), width, shared, int(dense), top_k, max(1, every))


def _mla(text: Mapping[str, Any]) -> Mla | None:
    if not text.get("kv_lora_rank"):
        return None
    q_rank = text.get("q_lora_rank")
    return Mla(
        q_rank=int(q_rank) if q_rank else None,
        kv_rank=int(text["kv_lora_rank"]),
        rope_dim=int(text.get("qk_rope_head_dim", 64)),
        nope_dim=int(text.get("qk_nope_head_dim", 128)),
        v_dim=int(text.get("v_head_dim", 128)),
    )


def _rotary_dim(text: Mapping[str, Any], head_dim: int, mla: Mla | None) -> int:
    if mla is not None:
        return mla.rope_dim
    share = text.get("partial_rotary_factor") or 1.0
    return int(head_dim * float(share))


def _rope_key(text: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two models share one rotary table in the engine's cache."""
    return (
        text.get("max_position_embeddings"),
        float(text.get("rope_theta") or 10000.0),
        str(text.get("rope_scaling") or text.get("rope_parameters")),
    )


def _aux_layers(text: Mapping[str, Any]) -> int:
    """How many of the target's hidden states an EAGLE-3 head reads."""
    given = text.get("num_aux_hidden_states")
    inner = text.get("eagle_config") or {}
    ids = inner.get("eagle_aux_hidden_state_layer_ids") or text.get("eagle_aux_hidden_state_layer_ids")
    return int(given or (len(ids) if ids else 3))
