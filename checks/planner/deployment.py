"""From a deployment, its models' metadata and a card or a host's facts to a `Scenario`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from checks.facts import HostFacts, Known, Missing
from checks.planner.engines import context
from checks.planner.scenario import Scenario
from checks.planner.units import MIB
from inventory.errors import CheckRefused, UsageError
from inventory.model import Deployment

__all__ = ["Gpus", "Meta", "gpus_of", "gpus_of_card", "scenario_of"]


class Meta(Protocol):
    """What the planner reads of a model: its configuration and, when known, its tensor headers."""

    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Any: ...


@dataclass(frozen=True)
class Gpus:
    """The cards of one host. ``total`` is what CUDA can give on the smallest, ``used`` by others, bytes."""

    name: str
    count: int
    total: int
    used: int = 0
    notes: tuple[str, ...] = ()


def gpus_of_card(name: str, memory_mib: int, count: int) -> Gpus:
    """``count`` cards of one kind, by the memory that nvidia-smi prints."""
    if count < 1:
        raise UsageError("--gpus is at least 1")
    return Gpus(name, count, _usable(memory_mib * MIB))


def gpus_of(facts: HostFacts) -> Gpus:
    """The cards that a probe found. Raises CheckRefused when nobody could look at their memory."""
    listed = facts.get("gpus")
    if isinstance(listed, Missing):
        raise CheckRefused(
            f"the GPUs could not be read: {listed.reason}",
            host=facts.host,
            hint="plan for a card instead: --gpu NAME --gpus N",
        )
    totals, used = [], []
    for i in range(len(listed.value)):
        total = facts.get(f"gpus.{i}.memory_total")
        if isinstance(total, Missing):
            raise CheckRefused(f"memory of GPU {i} could not be read: {total.reason}", host=facts.host)
        totals.append(int(total.value))
        used.append(facts.value(f"gpus.{i}.memory_used", int) or 0)
    if not totals:
        raise CheckRefused("no GPU was found", host=facts.host, hint="plan for a card: --gpu NAME --gpus N")
    ours = _serving(facts)
    note = (f"{ours} runs now; its memory counts as free, since it is replaced",) if ours else ()
    name = facts.value("gpus.0.name", str) or "GPU"
    return Gpus(name, len(totals), _usable(min(totals)), 0 if ours else max(used), note)


def _usable(reported: int) -> int:
    """NVML counts what the driver keeps for itself; CUDA's total doesn't."""
    return reported - context().driver_reserved_mib * MIB


def _serving(facts: HostFacts) -> str | None:
    units = facts.get("eyas.units")
    if not isinstance(units, Known) or not isinstance(units.value, Mapping):
        return None
    active = (n for n, u in units.value.items() if isinstance(u, Mapping) and u.get("active") == "active")
    return next(active, None)


def scenario_of(d: Deployment, target: Meta, draft: Meta | None, gpus: Gpus) -> Scenario:
    """The start that ``d`` asks for on these cards. An "auto" version means the newest rules."""
    return Scenario(
        config=target.config,
        device_total=gpus.total,
        engine=d.engine,
        version=None if d.engine_version == "auto" else d.engine_version,
        device=gpus.name,
        gpus=gpus.count * d.nodes,
        tp=d.tensor_parallel,
        pp=d.pipeline_parallel,
        utilization=d.gpu_memory_utilization,
        max_len=d.max_model_len,
        seqs=d.max_num_seqs,
        batched_tokens=d.max_num_batched_tokens,
        kv_dtype=d.kv_cache_dtype or "auto",
        kv_bytes=d.kv_cache_memory_bytes,
        block_size=d.block_size or 16,
        eager=d.enforce_eager,
        quantization=d.quantization,
        speculative=_speculative(d, draft),
        draft_config=draft.config if draft is not None else None,
        tensors=_tensors(target),
        draft_tensors=_tensors(draft),
        other_used=gpus.used,
        extra_args=d.extra_args,
        name=d.name,
    )


def _tensors(meta: Meta | None) -> Mapping[str, Any] | None:
    tensors = meta.tensors if meta is not None else None
    return tensors if isinstance(tensors, Mapping) and tensors else None


def _speculative(d: Deployment, draft: Meta | None) -> dict[str, Any]:
    if d.draft.method == "none":
        return {}
    predicted = (draft.config.get("n_predict") if draft is not None else None) or 1
    tokens = d.draft.num_speculative_tokens or d.draft.num_steps or int(predicted)
    given: dict[str, Any] = {"method": d.draft.method, "num_speculative_tokens": tokens, **d.draft.extra}
    if d.draft.tensor_parallel is not None:
        given["draft_tensor_parallel_size"] = d.draft.tensor_parallel
    return given
