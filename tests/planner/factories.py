"""Configurations and scenarios for the planner's tests."""

from typing import Any

from checks.planner.scenario import Scenario
from checks.planner.units import GIB


def llama(**changes: Any) -> dict[str, Any]:
    """Llama-3.1-8B's shape."""
    base: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return base | changes


def eagle3(**changes: Any) -> dict[str, Any]:
    """A published EAGLE-3 head's shape for it."""
    head = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
    return llama(**(head | changes))


def scenario(total_gib: float = 79.1, **changes: Any) -> Scenario:
    """Llama-3.1-8B on one H100-sized card unless changed."""
    fields: dict[str, Any] = {
        "config": llama(),
        "device_total": int(total_gib * GIB),
        "device": "H100",
        "version": "0.25.1",
        "max_len": 8192,
    }
    return Scenario(**(fields | changes))


def speculating(k: int = 4, method: str = "eagle3", **changes: Any) -> Scenario:
    """The same with an EAGLE-3 head."""
    spec = {"method": method, "num_speculative_tokens": k}
    return scenario(speculative=spec, draft_config=eagle3(), **changes)
