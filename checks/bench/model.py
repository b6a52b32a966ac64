"""What a bench measured and what it says. Schema 1: one ``BenchResult`` a host, as JSON.

Times are milliseconds, memory MiB, power watts, speeds output tokens a second. A number that nobody could
measure is None and ``missing`` says why, by the field's name; it is never 0.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from inventory.model import Method

__all__ = [
    "SCHEMA",
    "Acceptance",
    "AgainstBaseline",
    "BenchResult",
    "Cell",
    "DraftLength",
    "Losslessness",
    "Moved",
    "Speedup",
    "Spread",
    "StrategyRun",
    "Verdict",
]

SCHEMA = 1
Answer = Literal["pass", "fail", "can't tell"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Spread(_Frozen):
    """A median over ``n`` repeats with its 95 % interval; ``low == high`` means nobody repeated it."""

    median: float
    low: float
    high: float
    n: int

    @property
    def relative(self) -> float:
        """Half the interval as a share of the median; infinite where one run says nothing of the spread."""
        if self.n < 2 or self.median <= 0:
            return float("inf")
        return (self.high - self.low) / 2 / self.median


class Acceptance(_Frozen):
    """The engine's own counters over one cell, after minus before; None where it tells averages alone.

    ``per_position[i]``: share of drafts whose token at position i was accepted. ``mean_length``: tokens a
    verification step, 1 + accepted / drafts.
    """

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    rate: float | None = None
    mean_length: float
    per_position: tuple[float, ...] = ()


class Cell(_Frozen):
    """One workload at one concurrency with one strategy: medians over ``repeats`` rounds.

    ``step_ms``: time between two steps of the engine for one request (a step gives 1 + accepted tokens).
    ``settled``: the interval of ``tokens_per_s_total`` is narrow enough to tell 5 %.
    ``missing``: field -> why it is None.
    """

    workload: str
    concurrency: int
    repeats: int
    requests: int
    prompt_tokens: float
    output_tokens: float
    ttft_p50_ms: Spread
    ttft_p95_ms: Spread
    itl_ms: Spread | None = None
    step_ms: Spread | None = None
    tokens_per_s_request: Spread | None = None
    tokens_per_s_total: Spread
    settled: bool
    acceptance: Acceptance | None = None
    kv_usage_peak: float | None = None
    preemptions: int | None = None
    gpu_memory_mib: tuple[int, ...] | None = None
    gpu_power_w: tuple[float, ...] | None = None
    missing: dict[str, str] = Field(default_factory=dict)


class Losslessness(_Frozen):
    """Greedy output against the run without speculation. ``same`` None: nothing to compare with.

    ``at``: characters that are equal before the first difference; ``why`` is one sentence.
    """

    same: bool | None
    compared: int = 0
    differing: int = 0
    workload: str = ""
    at: int | None = None
    expected: str = ""
    got: str = ""
    why: str = ""


class StrategyRun(_Frozen):
    """All cells of one strategy as it was served. ``error``: it was wanted and did not serve; no cells then.

    ``kv_tokens``: size of the KV cache in tokens as the engine said it at its start. ``acceptance``: over all
    requests of the bench, warm-up included.
    """

    strategy: Method
    num_speculative_tokens: int | None = None
    draft: str = ""
    release: str = ""
    kv_tokens: int | None = None
    gpu_memory_mib: tuple[int, ...] | None = None
    acceptance: Acceptance | None = None
    cells: tuple[Cell, ...] = ()
    lossless: Losslessness | None = None
    error: str = ""
    missing: dict[str, str] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        k = self.num_speculative_tokens
        return self.strategy if k is None else f"{self.strategy} k={k}"

    def cell(self, workload: str, concurrency: int) -> Cell | None:
        return next((c for c in self.cells if (c.workload, c.concurrency) == (workload, concurrency)), None)


class Speedup(_Frozen):
    """Total output tokens/s with a strategy over that without, with its 95 % interval."""

    strategy: str
    workload: str
    concurrency: int
    ratio: Spread


class DraftLength(_Frozen):
    """What k drafted tokens would give for one strategy; ``measured`` once a run with that k was made."""

    strategy: Method
    num_speculative_tokens: int
    tokens_per_step: float
    step_ms: float
    speedup: float
    measured: bool = False


class Verdict(_Frozen):
    """Which strategy, how many tokens, and the concurrency above which it should be off.

    ``off_above`` None: it paid at every concurrency measured; where it never pays, the strategy is "none".
    ``certain`` False: an interval that decides crosses 1; ``text`` says which.
    """

    strategy: Method
    num_speculative_tokens: int | None = None
    off_above: int | None = None
    certain: bool
    text: str


class Moved(_Frozen):
    """One number now and then. ``change``: (now / before - 1), with its interval where both have one."""

    name: str
    now: float
    before: float
    change: float
    low: float | None = None
    high: float | None = None
    answer: Answer


class AgainstBaseline(_Frozen):
    answer: Answer
    rows: tuple[Moved, ...] = ()
    text: str


class BenchResult(_Frozen):
    """One host's bench. ``strategies[0]`` without ``--compare`` is what it serves.

    ``taken_at``: ISO 8601, UTC. ``gpus``: names of the cards, one a card; empty on a CPU build.
    ``seconds``: wall time. ``baseline_key``: runs with an equal key may be compared over time.
    """

    schema_: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["bench"] = "bench"
    host: str
    deployment: str
    taken_at: str
    seconds: float
    eyas_version: str = ""
    engine: str
    engine_version: str
    device: str
    gpus: tuple[str, ...] = ()
    tensor_parallel: int = 1
    quantization: str | None = None
    target: str
    prompt_tokens: int
    output_tokens: int
    baseline_key: str = ""
    short: bool = False
    strategies: tuple[StrategyRun, ...]
    speedups: tuple[Speedup, ...] = ()
    draft_lengths: tuple[DraftLength, ...] = ()
    verdict: Verdict | None = None
    against_baseline: AgainstBaseline | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises pydantic's ValidationError for another schema or a broken file."""
        return cls.model_validate_json(text)

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True)

    def run(self, strategy: str, num_speculative_tokens: int | None = None) -> StrategyRun | None:
        return next(
            (
                s
                for s in self.strategies
                if s.strategy == strategy and num_speculative_tokens in {None, s.num_speculative_tokens}
            ),
            None,
        )
