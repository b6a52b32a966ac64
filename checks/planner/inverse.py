"""The questions the other way round: what length, how many requests, which cards."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from checks.planner.plan import layout, plan
from checks.planner.result import Plan
from checks.planner.scenario import Scenario
from inventory.errors import EyasError, UsageError

__all__ = ["Capacity", "CardFit", "CardLike", "cards_that_do", "serves"]

_COUNTS = (1, 2, 4, 8)
#: Tried where the engine's default leaves too little: small cards, many ranks.
_LOWER = (0.9, 0.85, 0.8)


@dataclass(frozen=True)
class Capacity:
    """Whether ``requests`` of ``context`` tokens run at once, and how far each could go by itself."""

    requests: int
    context: int
    holds: bool
    most_requests: int
    longest_context: int
    plan: Plan

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "context": self.context,
            "holds": self.holds,
            "most_requests_at_this_context": self.most_requests,
            "longest_context_for_these_requests": self.longest_context,
        }


@dataclass(frozen=True)
class CardLike:
    """A card to try: its name, memory in bytes, and whether it computes in bfloat16."""

    name: str
    nbytes: int
    bfloat16: bool = True


@dataclass(frozen=True)
class CardFit:
    """The smallest number of one card that does."""

    card: str
    gpus: int
    plan: Plan


def serves(s: Scenario, *, requests: int, context: int) -> Capacity:
    """Plan for ``requests`` at once, each of up to ``context`` tokens."""
    if requests < 1 or context < 1:
        raise UsageError("--concurrency and --context are at least 1")
    made = plan(s.with_(seqs=max(requests, 1), max_len=context, auto_len=False))
    kv, lay = made.available_kv or 0, layout(made.scenario.work())
    blocks = lay.blocks(kv)
    most = int(lay.concurrency(kv, context)) if made.starts else 0
    share = blocks // requests * lay.bytes_per_block
    most_positions = s.with_(max_len=None, auto_len=False).work().max_len
    longest = lay.longest(share, max(context, most_positions)) if made.starts else 0
    return Capacity(requests, context, made.starts and most >= requests, most, longest, made)


def cards_that_do(s: Scenario, cards: Iterable[CardLike], *, requests: int | None = None) -> list[CardFit]:
    """For each card the smallest count (1, 2, 4, 8) on which ``s`` fits.

    Cards that never do, and cards without the model's number format, are left out.
    """
    found = []
    needs_bfloat16 = "bfloat16" in str(s.config.get("torch_dtype") or s.config.get("dtype"))
    for card in cards:
        if needs_bfloat16 and not card.bfloat16:
            continue
        fit = _smallest(s, card, requests)
        if fit is not None:
            found.append(fit)
    return sorted(found, key=lambda f: (f.gpus * f.plan.scenario.device_total, f.gpus))


def _smallest(s: Scenario, card: CardLike, requests: int | None) -> CardFit | None:
    for gpus in _COUNTS:
        for utilization in (s.utilization,) if s.utilization else (None, *_LOWER):
            tried = s.with_(
                device=card.name,
                device_total=card.nbytes,
                gpus=gpus,
                tp=gpus,
                other_used=0,
                utilization=utilization,
                speculative=_spec(s),
            )
            made = _planned(tried)
            if made is not None and (requests is None or (made.concurrency or 0) >= requests):
                return CardFit(card.name, gpus, made)
    return None


def _planned(s: Scenario) -> Plan | None:
    """The plan when it fits."""
    try:
        made = plan(s)
    except EyasError:
        return None
    return made if made.verdict == "fits" else None


def _spec(s: Scenario) -> dict[str, Any]:
    return {k: v for k, v in s.speculative.items() if k != "draft_tensor_parallel_size"}
