"""The command line's words as a `PairWant`, each wrong one refused by its name."""

from typing import get_args

from checks.pairgate.catalogue import roles_of
from checks.pairgate.model import PairWant
from inventory.errors import UsageError
from inventory.model import Deployment, EngineName

__all__ = ["want_from", "want_of"]

METHODS = ("eagle", "eagle3", "draft_model", "mtp", "dflash", "dspark")


def want_from(
    *,
    engine: str = "vllm",
    version: str = "auto",
    method: str = "",
    tensor_parallel: str = "1",
    draft_tensor_parallel: str = "",
    pipeline_parallel: str = "1",
    max_model_len: str = "",
) -> PairWant:
    """Empty means the engine's own default. Raises UsageError, also for a version that isn't catalogued."""
    if engine not in get_args(EngineName):
        raise UsageError(f"--engine {engine!r} is not known", hint="vllm or sglang")
    if method and method not in METHODS:
        raise UsageError(
            f"--method {method!r} takes no draft or is not known", hint=f"one of {', '.join(METHODS)}"
        )
    roles_of(engine, version)
    return PairWant(
        engine="sglang" if engine == "sglang" else "vllm",
        version=None if version == "auto" else version,
        method=method or None,
        tensor_parallel=_count(tensor_parallel, "--tensor-parallel") or 1,
        draft_tensor_parallel=_count(draft_tensor_parallel, "--draft-tensor-parallel"),
        pipeline_parallel=_count(pipeline_parallel, "--pipeline-parallel") or 1,
        max_model_len=_count(max_model_len, "--max-model-len"),
    )


def want_of(deployment: Deployment) -> PairWant:
    """What a deployment asks of its pair; it always writes its method."""
    return PairWant(
        engine=deployment.engine,
        version=None if deployment.engine_version == "auto" else deployment.engine_version,
        method=deployment.draft.method,
        tensor_parallel=deployment.tensor_parallel,
        draft_tensor_parallel=deployment.draft.tensor_parallel,
        pipeline_parallel=deployment.pipeline_parallel,
        max_model_len=deployment.max_model_len,
    )


def _count(text: str, flag: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise UsageError(f"{flag} {text!r} is not a whole number above 0", hint=f"{flag} 2")
    return int(text)
