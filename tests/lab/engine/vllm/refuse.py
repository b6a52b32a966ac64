"""What the engine refuses before any process starts, in its own words."""

import json
from pathlib import Path
from typing import Any

from .texts import text

__all__ = ["Refused", "check", "read_config"]

Config = dict[str, Any]


class Refused(Exception):
    """A configuration error; ``str`` is what the real one prints last."""

    def __init__(self, model: str, name: str, **values: Any) -> None:
        super().__init__(text("config", "invalid", model=model, text=text("config", name, **values)))


def read_config(path: str, what: str) -> Config:
    """config.json of a folder; a hub id has none here and is taken as it is."""
    folder = Path(path)
    if path.count("/") == 1 and not folder.is_absolute() and not folder.exists():
        return {}
    try:
        found: Config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise Refused(what, "not-a-model", path=path) from e
    return found


def check(values: dict[str, Any], retired_keys: list[str]) -> tuple[Config, Config]:
    """The target's and the draft's config.json ({} where there is none). Raises Refused."""
    target = read_config(values["model"], "ModelConfig")
    wanted, longest = values.get("max_model_len", 0), target.get("max_position_embeddings")
    if longest and wanted > longest:
        raise Refused("ModelConfig", "too-long", wanted=wanted, longest=longest)
    spec = values.get("spec") or {}
    draft = _check_spec(spec, values.get("tensor_parallel", 1), target, retired_keys) if spec else {}
    tp, heads = values.get("tensor_parallel", 1), target.get("num_attention_heads")
    if heads and heads % tp:
        raise Refused("VllmConfig", "heads", heads=heads, tp=tp)
    return target, draft


def _check_spec(spec: dict[str, Any], tp: int, target: Config, retired_keys: list[str]) -> Config:
    what, method = "SpeculativeConfig", spec.get("method")
    for key in retired_keys:
        if key in spec:
            raise Refused(what, "retired-key", key=key)
    if spec.get("draft_tensor_parallel_size") not in {None, 1, tp}:
        raise Refused(what, "draft-tp", tp=spec["draft_tensor_parallel_size"])
    low, high = spec.get("prompt_lookup_min"), spec.get("prompt_lookup_max")
    if low and high and low > high:
        raise Refused(what, "lookup", low=low, high=high)
    if method in {"ngram", "suffix", "mtp"} and not spec.get("model"):
        return {}
    if not spec.get("model"):
        raise Refused(what, "no-draft")
    draft = read_config(spec["model"], what)
    if not spec.get("num_speculative_tokens") and "n_predict" not in draft:
        raise Refused(what, "no-number")
    words = target.get("vocab_size"), draft.get("vocab_size")
    if method == "draft_model" and None not in words and words[0] != words[1]:
        raise Refused(what, "vocabulary", target=words[0], draft=words[1])
    return draft
