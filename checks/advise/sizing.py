"""The smallest split and mildest quantisation that holds all users at once, planned and planned again."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from checks.advise.question import Question
from checks.planner.deployment import Meta, scenario_of
from checks.planner.inverse import Capacity, serves
from checks.planner.scenario import Scenario
from inventory.errors import EyasError
from inventory.model import Deployment

__all__ = ["Sized", "bits_of", "size"]

_SPLITS = (1, 2, 4, 8, 16)
#: Where the engine's own share leaves too little beside it.
_SHARES = (None, 0.9, 0.88, 0.85, 0.8)
#: Online fp8 needs these cards' arithmetic.
_FP8 = 8.9


@dataclass(frozen=True)
class Sized:
    """A deployment that starts; ``holds``: all users at once at the asked context."""

    deployment: Deployment
    capacity: Capacity

    @property
    def holds(self) -> bool:
        return self.capacity.holds and self.capacity.plan.verdict != "does-not-fit"


def size(q: Question, d: Deployment, target: Meta, draft: Meta | None) -> Sized | None:
    """The first that holds; else the one that comes closest; None when nothing even starts."""
    closest: Sized | None = None
    for tried in _tries(q, d, target):
        made = _sized(q, tried, target, draft)
        if made is None:
            continue
        if made.holds and made.capacity.plan.verdict == "fits":
            return made
        if closest is None or _rank(made) > _rank(closest):
            closest = made
    return closest


def _rank(s: Sized) -> tuple[bool, int]:
    return s.holds, s.capacity.longest_context


def _tries(q: Question, d: Deployment, target: Meta) -> Iterator[Deployment]:
    """Unquantised on few cards first: other weights are another model."""
    online = [None]
    if not target.config.get("quantization_config") and float(q.card.compute_capability) >= _FP8:
        online.append("fp8")  # type: ignore[arg-type]
    for quantization in online:
        for tp in (n for n in _SPLITS if n <= q.count):
            for share in _SHARES:
                changes: dict[str, Any] = {"tensor_parallel": tp, "gpu_memory_utilization": share}
                yield d.model_copy(update=changes | {"quantization": quantization})


def _sized(q: Question, d: Deployment, target: Meta, draft: Meta | None) -> Sized | None:
    try:
        found = serves(_scenario(q, d, target, draft), requests=q.users, context=q.context)
    except EyasError:
        return None
    if not found.plan.starts and not found.longest_context:
        return None
    sizes = {"max_model_len": q.context, "max_num_seqs": q.users}
    return Sized(d.model_copy(update=sizes), found)


def _scenario(q: Question, d: Deployment, target: Meta, draft: Meta | None) -> Scenario:
    return scenario_of(d, target, draft, q.gpus)


def bits_of(s: Scenario) -> float:
    """Bits of a weight as the arithmetic sees them: 8 bit weights come with arithmetic twice as fast."""
    scheme = s.work().scheme
    return 16.0 if scheme is None or scheme.bits >= 8 else scheme.bits
