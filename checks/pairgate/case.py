"""One pair as the rules see it: both sides, what is wanted, what the engine version does."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from checks.pairgate.catalogue import Roles
from checks.pairgate.model import PairWant
from checks.pairgate.views import Draft, Model
from inventory.pairs import Pairs

__all__ = ["HEADS", "Case"]

#: Methods whose draft is a head that reads the target's hidden states.
HEADS = frozenset({"eagle", "eagle3"})


@dataclass(frozen=True)
class Case:
    target: Model
    draft: Draft
    want: PairWant
    roles: Roles
    pairs: Pairs

    @cached_property
    def detected(self) -> str:
        """What the engine takes the draft for by its name alone; empty for an engine that never guesses."""
        name = self.draft.label.lower()
        row = self.roles["detection"]
        return str(next((method for part, method in row["names"] if part in name), row["otherwise"]))

    @cached_property
    def method(self) -> str:
        """What the draft is: its files decide; a bare configuration leaves it to what is known of it."""
        published = next((p.method for p in self.pairs.for_draft(self.draft.label)), None)
        return self.draft.method or self.want.method or published or self.detected or "draft_model"

    @property
    def is_head(self) -> bool:
        return self.method in HEADS

    @property
    def tp(self) -> int:
        return self.want.tensor_parallel

    @cached_property
    def draft_tp(self) -> int:
        """Ranks that the draft is really split over."""
        row = self.roles["draft_tp"]
        given = self.want.draft_tensor_parallel
        split = row["head"] if self.is_head else row["draft_model"]
        if given is None or split == "ignored":
            return self.tp
        return given

    @cached_property
    def served_length(self) -> int | None:
        """Tokens a request may have: as asked, else what the target was made for (the engines' default)."""
        return self.want.max_model_len or self.target.positions

    def error(self, role: str, key: str = "error", **values: Any) -> str:
        """The engine's error text of this role with its fields filled in."""
        text = str(self.roles[role].get(key, ""))
        for name, value in values.items():
            text = text.replace("{" + name + "}", str(value))
        return text
