"""The shipped curves, uses and cards' arithmetic: curves.toml, validated."""

import tomllib
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from inventory.errors import UsageError
from inventory.nearest import did_you_mean

__all__ = ["Curve", "Data", "Use", "load_data", "use_named"]

Points = tuple[tuple[int, float], ...]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    source: str


class Curve(_Row):
    """Output tokens/s by requests at once on one machine, without and with speculation."""

    card: str
    model: str
    method: str
    num_speculative_tokens: int
    acceptance_length: float
    plain: Points
    speculative: Points

    @property
    def costs(self) -> Points:
        """What a step with drafts took in steps without, by requests at once."""
        plain = dict(self.plain)
        return tuple((n, self.acceptance_length * plain[n] / fast) for n, fast in self.speculative)


class Use(_Row):
    """What people do with the model. ``kept``: chance by method that the next drafted token is kept too."""

    name: str
    about: str
    context: int
    workloads: tuple[str, ...]
    kept: dict[str, float]


class _Cards(_Row):
    bf16_tflops: dict[str, float]


class Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_: int = Field(alias="schema")
    curve: tuple[Curve, ...]
    use: tuple[Use, ...]
    cards: _Cards


@cache
def load_data() -> Data:
    path = Path(__file__).parent / "curves.toml"
    return Data.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


def use_named(name: str) -> Use:
    """Raises UsageError with the nearest name."""
    uses = {u.name: u for u in load_data().use}
    if name not in uses:
        known = ", ".join(uses)
        raise UsageError(
            f"--use is {name!r}, not one of {known}" if name else f"no use is named: one of {known}",
            hint=did_you_mean(name, uses) or "--use coding-agent",
        )
    return uses[name]
