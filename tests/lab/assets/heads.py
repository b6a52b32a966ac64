"""EAGLE and EAGLE-3 heads as torch modules whose weight names are the ones that engines load.

The shapes follow the published checkpoints: an EAGLE head joins the word and the target's last hidden state
(``fc`` is [H, 2H]); an EAGLE-3 head joins several of the target's layers (``fc`` is [H, nH]) and its one
layer attends over word and state side by side, so that its projections read 2H.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

__all__ = ["Eagle", "Eagle3", "save_head"]


class _Head(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        config._attn_implementation = "sdpa"
        # Kept out of the module's children: it has no weights, and engines know no such name.
        self._rotary = [LlamaRotaryEmbedding(config)]

    def positions(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        where = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
        return where, self._rotary[0](x, where)


class Eagle(_Head):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, 0)])
        self.layers[0].input_layernorm = nn.Identity()

    def forward(self, embedded: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        x = self.fc(torch.cat([embedded, state], -1))
        where, rotary = self.positions(x)
        out = self.layers[0](x, attention_mask=None, position_ids=where, position_embeddings=rotary)
        return out[0] if isinstance(out, tuple) else out


class _Midlayer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        wide, head = 2 * config.hidden_size, config.head_dim
        self.self_attn = LlamaAttention(config, 0)
        self.self_attn.q_proj = nn.Linear(wide, config.num_attention_heads * head, bias=False)
        self.self_attn.k_proj = nn.Linear(wide, config.num_key_value_heads * head, bias=False)
        self.self_attn.v_proj = nn.Linear(wide, config.num_key_value_heads * head, bias=False)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class Eagle3(_Head):
    """``forward`` gives the logits of the next word and the state that the next guess starts from."""

    def __init__(self, config: LlamaConfig, layers_read: int) -> None:
        super().__init__(config)
        self.fc = nn.Linear(layers_read * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = _Midlayer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, embedded: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self.midlayer
        x = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(state)], -1)
        _, rotary = self.positions(x)
        state = state + layer.self_attn(x, position_embeddings=rotary, attention_mask=None)[0]
        state = state + layer.mlp(layer.post_attention_layernorm(state))
        return self.lm_head(self.norm(state)), state


def save_head(weights: dict[str, torch.Tensor], config: dict[str, Any], out: Path) -> None:
    """Write one head in the hub's layout: config.json and model.safetensors."""
    out.mkdir(parents=True)
    tensors = {name: w.detach().contiguous().clone() for name, w in weights.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config.pop("transformers_version", None)
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
