"""What the engine refuses before any process starts, in its own words (vLLM 0.32 and 0.33)."""

import json
import os
from typing import Any

__all__ = ["Refused", "check", "read_config"]

_NOT_A_MODEL = """Invalid repository ID or local directory specified: '%s'.
Please verify the following requirements:
1. Provide a valid Hugging Face repository ID.
2. Specify a local directory that contains a recognized configuration file.
   - For Hugging Face models: ensure the presence of a 'config.json'.
   - For Mistral models: ensure the presence of a 'params.json'.
"""


class Refused(Exception):
    """A configuration error; ``str`` is what the real one prints last."""

    def __init__(self, model: str, text: str) -> None:
        tail = "[type=value_error, input_value=ArgsKwargs(...), input_type=ArgsKwargs]"
        super().__init__(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for %s\n  Value error, %s %s\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error" % (model, text, tail)
        )


def read_config(path: str, what: str) -> dict[str, Any]:
    """config.json of a folder; a hub id has none here and is taken as it is."""
    if not os.path.isabs(path) and not os.path.exists(path) and path.count("/") == 1:
        return {}
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
            return json.load(file)  # type: ignore[no-any-return]
    except (OSError, ValueError) as e:
        raise Refused(what, _NOT_A_MODEL % path) from e


def check(values: dict[str, Any], retired_keys: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The target's and the draft's config.json ({} where there is none). Raises Refused."""
    target = read_config(values.get("model_tag") or values.get("target", ""), "ModelConfig")
    wanted, longest = values.get("max_model_len"), target.get("max_position_embeddings")
    if wanted and wanted > 0 and longest and wanted > longest:
        derived = "max_position_embeddings=%.1f or model_max_length=None in model's config.json" % longest
        text = "User-specified max_model_len (%d) is greater than the derived max_model_len (%s)." % (wanted, derived)
        raise Refused("ModelConfig", text + " To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.")
    draft = _check_spec(values, target, retired_keys)
    tp, heads = values.get("tensor_parallel", 1), target.get("num_attention_heads")
    if heads and heads % tp:
        raise Refused("VllmConfig", _HEADS % (heads, tp))
    return target, draft


_HEADS = "Total number of attention heads (%d) must be divisible by tensor parallel size (%d)."


def _check_spec(values: dict[str, Any], target: dict[str, Any], retired_keys: list[str]) -> dict[str, Any]:
    spec = values.get("spec")
    if not spec:
        return {}
    for key in retired_keys:
        if key in spec:
            raise Refused("SpeculativeConfig", "Unexpected keyword argument: %s" % key)
    tp, draft_tp = values.get("tensor_parallel", 1), spec.get("draft_tensor_parallel_size")
    if draft_tp is not None and draft_tp not in {1, tp}:
        text = "speculative_draft_tensor_parallel_size=%s cannot be other value than 1 or target model tensor_parallel_size"
        raise Refused("SpeculativeConfig", text % draft_tp)
    if spec.get("method") in {"ngram", "suffix"}:
        low, high = spec.get("prompt_lookup_min"), spec.get("prompt_lookup_max")
        if low and high and low > high:
            raise Refused("SpeculativeConfig", "prompt_lookup_min=%d must be <= prompt_lookup_max=%d" % (low, high))
        return {}
    if not spec.get("model"):
        if spec.get("method") == "mtp":
            return {}
        raise Refused("SpeculativeConfig", "num_speculative_tokens was provided but without speculative model.")
    draft = read_config(spec["model"], "SpeculativeConfig")
    if not spec.get("num_speculative_tokens") and "n_predict" not in draft:
        text = "A speculative model was provided, but `num_speculative_tokens` was not provided"
        raise Refused("SpeculativeConfig", text)
    words = target.get("vocab_size"), draft.get("vocab_size")
    if spec.get("method") == "draft_model" and None not in words and words[0] != words[1]:
        text = "Target and draft model should have the same vocabulary size. Target model vocab_size=%s. Draft model vocab_size=%s."
        raise Refused("SpeculativeConfig", text % words)
    return draft
