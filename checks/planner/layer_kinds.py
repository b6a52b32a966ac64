"""Which layers of a model keep every token, which a window of them, which a state of fixed size."""

from collections.abc import Mapping
from typing import Any

__all__ = ["layer_kinds", "window_of"]

_STATE_WORDS = ("mamba", "linear", "recurrent", "ssm", "conv")
_WINDOW_WORDS = ("sliding", "local", "chunked")


def layer_kinds(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """One of "full", "window", "state" for each of ``layers``, as the configuration says it."""
    named = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(named, list) and len(named) >= layers:
        return tuple(_kind(str(n)) for n in named[:layers])
    interval = text.get("full_attention_interval")
    if isinstance(interval, int) and interval > 1:
        return tuple("full" if (i + 1) % interval == 0 else "state" for i in range(layers))
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1 and text.get("sliding_window"):
        return tuple("full" if (i + 1) % pattern == 0 else "window" for i in range(layers))
    uses = text.get("sliding_window") and text.get("use_sliding_window", True)
    return ("window" if uses else "full",) * layers


def _kind(name: str) -> str:
    if any(w in name for w in _STATE_WORDS):
        return "state"
    return "window" if any(w in name for w in _WINDOW_WORDS) else "full"


def window_of(text: Mapping[str, Any], kinds: tuple[str, ...]) -> int | None:
    """The window in tokens, None when no layer has one."""
    if "window" not in kinds:
        return None
    value = text.get("sliding_window") or text.get("attention_chunk_size")
    return int(value) if value else None
