"""What a bench has found so far, and what follows from it: speedups, draft lengths, losslessness."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checks.bench.draft_length import lengths
from checks.bench.lossless import compare_outputs
from checks.bench.model import DraftLength, Speedup, StrategyRun
from checks.bench.statistics import paired_change
from checks.bench.verdict import by_concurrency, gain
from checks.facts import HostFacts
from inventory.model import Deployment, Method
from provision.bench.measure import Asked, Measured, Say, Sizes
from provision.converge import Options
from provision.shell import Shell

__all__ = ["Bench", "estimates_of", "gains_of", "runs_of", "speedups_of"]


@dataclass
class Bench:
    """One bench in the making. ``runs`` in the order they were made, ``found`` what each gave."""

    shell: Shell
    deployment: Deployment
    asked: Asked
    options: Options
    say: Say
    facts: HostFacts
    current: str
    force: bool = False
    size: Sizes | None = None
    runs: list[StrategyRun] = field(default_factory=list)
    found: dict[str, Measured] = field(default_factory=dict)
    key: str = ""
    engine: tuple[str, str, str] = ("", "", "")


def gains_of(b: Bench, method: Method) -> dict[int, float]:
    """Measured speedup by number of tokens."""
    speedups = speedups_of(b)
    return {
        r.num_speculative_tokens: gain(points)
        for r in b.runs
        if r.strategy == method and r.num_speculative_tokens and (points := by_concurrency(speedups, r.label))
    }


def estimates_of(b: Bench) -> list[DraftLength]:
    """By strategy, from its last run; a length that was measured says so with its measured speedup."""
    plain = next((r for r in b.runs if r.strategy == "none" and r.cells), None)
    out: dict[Method, list[DraftLength]] = {}
    for run in b.runs if plain else ():
        assert plain is not None
        if run.cells and run.strategy != "none" and (found := lengths(run, plain)):
            out[run.strategy] = found
    return [_measured(e, gains_of(b, m)) for m, found in out.items() for e in found]


def _measured(e: DraftLength, gains: dict[int, float]) -> DraftLength:
    known = gains.get(e.num_speculative_tokens)
    return e.model_copy(update={"speedup": known, "measured": True}) if known else e


def speedups_of(b: Bench) -> list[Speedup]:
    """Repeat by repeat against the run without speculation: both had the same prompts."""
    plain = b.found.get("none")
    out = []
    for run in b.runs if plain else ():
        assert plain is not None
        found = b.found.get(run.label)
        for (workload, concurrency), totals in (
            found.totals.items() if found and run.strategy != "none" else ()
        ):
            before = plain.totals.get((workload, concurrency))
            if before:
                n = min(len(totals), len(before))
                ratio = paired_change(totals[:n], before[:n])
                out.append(
                    Speedup(strategy=run.label, workload=workload, concurrency=concurrency, ratio=ratio)
                )
    return out


def runs_of(b: Bench) -> Iterator[StrategyRun]:
    plain = b.found.get("none")
    for run in b.runs:
        found = b.found.get(run.label)
        if plain is None or found is None or run.strategy == "none":
            yield run
            continue
        same = compare_outputs(
            plain.alone,
            found.alone,
            plain_in_batch=plain.in_batch,
            dtype=b.deployment.dtype,
            workload=b.asked.workloads[0].name,
        )
        yield run.model_copy(update={"lossless": same})
