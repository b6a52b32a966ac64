"""A target and a draft as an engine sees them: the fields that decide, under one name each.

Configurations spell the same thing in several ways (nested text models, speculators files, EAGLE settings in
a sub-object, rope settings of transformers 4 and 5); everything that knows such a spelling is here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from checks.facts import Missing
from checks.modelmeta import ModelMeta, TensorInfo

__all__ = ["Draft", "Model"]

#: Layer 0 of a head: `midlayer` in EAGLE-3's own files, `layers.0` elsewhere.
_LAYER0 = re.compile(r"(?:^|\.)(?:midlayer|layers\.0)\.")
#: Scalings whose factor is not yet in max_position_embeddings (vLLM 0.32.0 wheel, config/model.py).
_SCALED_ROPE = frozenset({"linear", "dynamic", "yarn"})
#: Beyond this a rope factor is a mistake.
MAX_FACTOR = 10_000
_MTP_TYPES = re.compile(r"(_mtp|_nextn)$")
_ARCH_METHODS = (("Eagle3", "eagle3"), ("PEagle", "eagle3"), ("Peagle", "eagle3"), ("DFlash", "dflash"),
                 ("DSpark", "dspark"), ("Medusa", "medusa"), ("MLPSpeculator", "mlp_speculator"))  # fmt: skip
_SPECULATORS = {"eagle3": "eagle3", "peagle": "eagle3", "eagle": "eagle", "dflash": "dflash",
                "dflash2": "dflash", "dspark": "dspark"}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """Any checkpoint. A number is None when the configuration does not say and no rule derives it."""

    meta: ModelMeta

    @property
    def label(self) -> str:
        return self.meta.label

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return self.meta.text_config

    def number(self, name: str) -> int | None:
        value = self.config.get(name, self.meta.config.get(name))
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    @property
    def architecture(self) -> str:
        for names in (self.meta.architectures, self.config.get("architectures")):
            if isinstance(names, list | tuple) and names:
                return str(names[0])
        return ""

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type") or self.meta.config.get("model_type") or "")

    @property
    def hidden_size(self) -> int | None:
        return self.number("hidden_size")

    @property
    def vocab_size(self) -> int | None:
        return self.number("vocab_size")

    @property
    def heads(self) -> int | None:
        return self.number("num_attention_heads")

    @property
    def kv_heads(self) -> int | None:
        return self.number("num_key_value_heads") or self.heads

    @property
    def uses_mla(self) -> bool:
        """Multi-head latent attention keeps one latent a token: KV heads do not split over ranks."""
        return self.number("kv_lora_rank") is not None

    @property
    def head_dim(self) -> int | None:
        explicit = self.number("head_dim")
        if explicit or not (self.hidden_size and self.heads):
            return explicit
        return self.hidden_size // self.heads

    @property
    def rope(self) -> Mapping[str, Any]:
        found = self.config.get("rope_parameters") or self.config.get("rope_scaling")
        return found if isinstance(found, Mapping) else {}

    @property
    def rope_type(self) -> str:
        return str(self.rope.get("rope_type") or self.rope.get("type") or "default")

    @property
    def positions(self) -> int | None:
        """The longest sequence the model was made for, in tokens (scaled as the engine scales it)."""
        plain = self.number("max_position_embeddings") or self.number("n_positions")
        if plain is None:
            return None
        factor = self.rope.get("factor")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < MAX_FACTOR:
            return plain
        base = self.rope.get("original_max_position_embeddings")
        if self.rope_type == "yarn" and isinstance(base, int):
            return int(base * factor)
        return int(plain * factor) if self.rope_type in _SCALED_ROPE else plain

    @cached_property
    def quant_config(self) -> Mapping[str, Any]:
        for config in (self.meta.config, self.config):
            found = config.get("quantization_config")
            if isinstance(found, Mapping) and found:
                return found
        return {}

    @property
    def quantization(self) -> str:
        """The stored format ("fp8", "awq 4 bit"), empty when the weights are plain."""
        found = self.quant_config
        if not found:
            return "gguf" if self.is_gguf else ""
        method = str(found.get("quant_method") or found.get("quant_algo") or "quantised")
        return f"{method} {self.quant_bits} bit" if self.quant_bits else method

    @property
    def quant_bits(self) -> int | None:
        """Bits of a weight where the configuration says so (awq, gptq, bitsandbytes, compressed-tensors)."""
        found = self.quant_config
        bits = _find(found, "weights", ("num_bits",)) or _find(found, "", ("bits", "w_bit", "num_bits"))
        four = found.get("load_in_4bit") is True or "4" in str(found.get("quant_algo", ""))
        return bits or (4 if four else None)

    @property
    def is_gguf(self) -> bool:
        files = self.meta.files
        return any(f.endswith(".gguf") for f in files) and not any(f.endswith(".safetensors") for f in files)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {} if isinstance(self.meta.tensors, Missing) else self.meta.tensors


@dataclass(frozen=True)
class Draft(Model):
    """A draft checkpoint: a head, or a small model of its own."""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The layer's settings; a speculators file nests them, its own keys on top."""
        layer = self.meta.config.get("transformer_layer_config")
        if self.speculators_type and isinstance(layer, Mapping):
            return {
                **layer,
                **{k: v for k, v in self.meta.config.items() if k not in {"architectures", "model_type"}},
            }
        inner = self.meta.config.get("model")
        return inner if isinstance(inner, Mapping) else super().config

    @property
    def speculators_type(self) -> str:
        return str(self.meta.config.get("speculators_model_type") or "")

    @property
    def layer_type(self) -> str:
        layer = self.meta.config.get("transformer_layer_config")
        return str(layer.get("model_type") or "llama") if isinstance(layer, Mapping) else self.model_type

    @property
    def verifier(self) -> str:
        """The target that the file itself names, empty when it names none."""
        spec = self.meta.config.get("speculators_config")
        verifier = spec.get("verifier") if isinstance(spec, Mapping) else None
        return str(verifier.get("name_or_path") or "") if isinstance(verifier, Mapping) else ""

    @cached_property
    def method(self) -> str | None:
        """What the files are. None when only a configuration is there and it could be several things."""
        if self.speculators_type:
            return _SPECULATORS.get(self.speculators_type, self.speculators_type)
        named = next((m for part, m in _ARCH_METHODS if part in self.architecture), None)
        if named or self.architecture.startswith("Eagle") or self.meta.config.get("model_type") == "eagle":
            return named or "eagle"
        if _MTP_TYPES.search(self.model_type):
            return "mtp"
        if self.config.get("draft_vocab_size") or self.eagle_config:
            return "eagle3"
        return self._method_of_tensors()

    def _method_of_tensors(self) -> str | None:
        if not self.tensors:
            return None
        if self.first("d2t") or any("midlayer." in n for n in self.tensors):
            return "eagle3"
        if self.fc is None:
            return "draft_model" if self.first("embed_tokens.weight") or self.first("wte.weight") else None
        return "eagle3" if self._reads_concatenation() else "eagle"

    def _reads_concatenation(self) -> bool:
        """EAGLE-3's first layer takes embedding and hidden state side by side: twice the width."""
        q = self.layer0("self_attn.q_proj.weight")
        return bool(q and self.hidden_size and len(q.shape) == 2 and q.shape[1] == 2 * self.hidden_size)

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        found = self.meta.config.get("eagle_config")
        return found if isinstance(found, Mapping) else {}

    @property
    def target_hidden_size(self) -> int | None:
        """Width of the target states that the head takes in."""
        return self.number("target_hidden_size") or self.hidden_size

    @property
    def draft_vocab_size(self) -> int | None:
        return self.number("draft_vocab_size") or self.vocab_size

    @property
    def uses_aux_states(self) -> bool:
        return self.eagle_config.get("use_aux_hidden_state", True) is not False

    @property
    def aux_layers(self) -> int:
        """How many of the target's layers feed ``fc``, as its configuration tells the engine (default 3)."""
        explicit = self.number("num_aux_hidden_states")
        ids = self.eagle_config.get("eagle_aux_hidden_state_layer_ids")
        return explicit or (len(ids) if isinstance(ids, list) and ids else 3)

    @property
    def fc(self) -> TensorInfo | None:
        return self.first("fc.weight")

    def first(self, suffix: str) -> TensorInfo | None:
        return next((t for _, t in self.meta.named(suffix)), None)

    def layer0(self, suffix: str) -> TensorInfo | None:
        """A tensor of the head's first layer."""
        return next((t for n, t in self.tensors.items() if n.endswith(suffix) and _LAYER0.search(n)), None)

    @property
    def has_layer0(self) -> bool:
        return any(_LAYER0.search(n) for n in self.tensors)


def _find(node: Any, below: str, keys: Iterable[str]) -> int | None:
    """The first of these numbers anywhere in ``node``; with ``below`` only under a key of that name."""
    if isinstance(node, Mapping):
        if not below:
            for key in keys:
                if type(node.get(key)) is int:
                    return int(node[key])
        parts = [(v, "" if k == below else below) for k, v in node.items()]
    else:
        parts = [(v, below) for v in node] if isinstance(node, list) else []
    found = (_find(part, inner, keys) for part, inner in parts)
    return next((n for n in found if n is not None), None)
