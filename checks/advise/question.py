"""What is asked of `invoke advise`, and the answer with the standing of each of its lines."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from checks.advise.data import Use
from checks.planner.deployment import Gpus, gpus_of_card
from inventory.errors import UsageError
from inventory.hardware import Card, card_named, load_cards
from inventory.model import Deployment, ModelRef

__all__ = ["Answer", "Known", "Line", "Question", "parse_gpus", "parse_number"]

Known = Literal["measured", "planned", "estimated", "assumed", "catalogue", "given"]
_GPUS = re.compile(r"(?:(\d{1,4})\s*[x×*]\s*)?(\S.*?)\s*", re.IGNORECASE)
MOST_CARDS = 64


@dataclass(frozen=True)
class Question:
    """``users`` count as that many requests at once; ``context``: tokens of each with its answer."""

    model: ModelRef
    card: Card
    count: int
    users: int
    use: Use
    context: int
    engine: Literal["vllm", "sglang"] | None = None

    @property
    def gpus(self) -> Gpus:
        return gpus_of_card(self.card.name, self.card.memory_mib, self.count)


@dataclass(frozen=True)
class Line:
    """One thing said: its value, how it is known, and by what."""

    what: str
    value: str
    known: Known
    by: str


@dataclass(frozen=True)
class Answer:
    """``deployment`` is what would be written; ``gain`` is output with speculation over output without."""

    deployment: Deployment
    verdict: str
    gain: float | None
    off_above: int | None
    lines: tuple[Line, ...]
    passed_over: tuple[dict[str, str], ...] = ()
    commands: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        d = self.deployment
        return {
            "schema": 1,
            "task": "advise",
            "verdict": self.verdict,
            "strategy": d.draft.method,
            "draft": d.draft.model.label if d.draft.model else None,
            "num_speculative_tokens": d.draft.num_speculative_tokens,
            "engine": d.engine,
            "tensor_parallel": d.tensor_parallel,
            "quantization": d.quantization,
            "gain": None if self.gain is None else round(self.gain, 2),
            "off_above": self.off_above,
            "lines": [vars(x) for x in self.lines],
            "passed_over": list(self.passed_over),
            "deployment": d.model_dump(mode="json", exclude_defaults=True),
            "commands": list(self.commands),
        }


def parse_gpus(text: str) -> tuple[Card, int]:
    """``4x RTX 4090`` as card and count; without a count it is one. Raises UsageError."""
    found = _GPUS.fullmatch(text.strip())
    if found is None:
        raise UsageError("no cards are named", hint='--gpus "4x RTX 4090"')
    count = int(found[1] or 1)
    card = card_named(found[2])
    if card is None:
        names = ", ".join(c.name for c in load_cards())
        raise UsageError(f"unknown card {found[2]!r}", hint=f'write it as "4x RTX 4090"; known: {names}')
    if not 1 <= count <= MOST_CARDS:
        raise UsageError(f"--gpus names {count} cards, not 1 to {MOST_CARDS} of one host")
    return card, count


def parse_number(option: str, text: str, most: int) -> int:
    """A whole number from 1 to ``most``. Raises UsageError."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:12]) <= most:
        raise UsageError(f"{option} is {text!r}, not a number from 1 to {most}")
    return int(text)
