"""One strategy as it is served now: cells, outputs, memory. Progress is one line a cell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from checks.bench.cells import MOST, Round, counted, enough, make_cell
from checks.bench.model import Acceptance, Cell
from checks.bench.statistics import spread
from checks.bench.workloads import Workload, fitted
from inventory.errors import CheckRefused, UsageError
from provision.bench.load import Loader

__all__ = ["Asked", "Measured", "Say", "Sizes", "measure", "sizes"]

Say = Callable[[str], None]

#: The first draft of a cell is never counted: caches and compiled kernels warm up with these many tokens.
_WARM_TOKENS = 8
#: Prompts whose whole answers are compared with and without speculation, and at most so many tokens of each.
_COMPARED, _COMPARED_TOKENS = 4, 128
_DOMAIN_CONCURRENCY = 4
#: Room that the engine needs beside prompt and answer (draft positions, the chat form).
_ROOM = 16


@dataclass(frozen=True)
class Asked:
    """What is to be measured. ``exact``: the lengths were given and are never made smaller."""

    workloads: tuple[Workload, ...]
    concurrency: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    exact: bool = False
    most: int = MOST
    domains: tuple[Workload, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """What it came to on this server: tokens, and characters by domain; the same for every strategy."""

    prompt_tokens: int
    output_tokens: int
    chars: dict[str, int]
    notes: tuple[str, ...] = ()


@dataclass
class Measured:
    """``totals``: output tokens/s by repeat, for each (workload, concurrency)."""

    cells: list[Cell] = field(default_factory=list)
    totals: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    acceptance: Acceptance | None = None
    alone: tuple[str, ...] = ()
    in_batch: tuple[str, ...] = ()


def sizes(loader: Loader, asked: Asked, *, force: bool = False) -> Sizes:
    """Lengths that fit this server. Raises CheckRefused when it is busy with others' requests."""
    hello = loader.ask("hello")
    if not force and all((loader.ask("hello").get("running") or 0) > 0 for _ in range(2)):
        raise CheckRefused(
            f"{hello['running']:.0f} requests run here now: they and the bench would disturb each other",
            hint="wait for a quiet hour, or take the host out of the router first",
            host=loader.host,
        )
    prompt, output, notes = _lengths(asked, hello.get("max_model_len"))
    every = {d.name: d for w in (*asked.workloads, *asked.domains) for d in w.domains}
    chars = {name: fitted(d, prompt, loader.count) for name, d in every.items()}
    return Sizes(prompt, output, chars, notes)


def _lengths(asked: Asked, longest: int | None) -> tuple[int, int, tuple[str, ...]]:
    prompt, output = asked.prompt_tokens, asked.output_tokens
    if longest is None:
        return prompt, output, ()
    room = longest - _ROOM
    # A stretched prompt may miss its length by a little.
    if prompt * 1.05 + output <= room:
        return prompt, output, ()
    if asked.exact:
        raise UsageError(
            f"{prompt} prompt and {output} output tokens don't fit max_model_len {longest}",
            hint=f"--prompt-tokens {room * 2 // 3 - 10} --output-tokens {room // 3}",
        )
    share = room / (prompt * 1.05 + output)
    less = int(prompt * share), int(output * share)
    return *less, (f"max_model_len {longest}: {less[0]} prompt and {less[1]} output tokens instead of more",)


def measure(loader: Loader, asked: Asked, size: Sizes, label: str, say: Say, *, domains: bool) -> Measured:
    found, before = Measured(), loader.ask("tell")
    _warm_up(loader, asked, size, label)
    for workload in asked.workloads:
        for concurrency in asked.concurrency:
            rounds = _rounds(loader, workload, concurrency, asked, size)
            _keep(found, workload, concurrency, rounds, label, say)
    for workload in asked.domains if domains else ():
        most = min(_DOMAIN_CONCURRENCY, max(asked.concurrency))
        _keep(found, workload, most, [_round(loader, workload, most, size, 0)], label, say)
    _outputs(loader, asked, size, found)
    found.acceptance = _between(before, loader.ask("tell"))
    return found


def _between(before: dict[str, Any], after: dict[str, Any]) -> Acceptance | None:
    was, at = before["counters"], before["positions"] or [0.0] * len(after["positions"])
    counters = {k: None if v is None else v - (was.get(k) or 0.0) for k, v in after["counters"].items()}
    return counted(counters, [b - a for a, b in zip(at, after["positions"], strict=True)])


def _warm_up(loader: Loader, asked: Asked, size: Sizes, label: str) -> None:
    most = max(asked.concurrency)
    prompts = asked.workloads[0].prompts(size.chars, most, f"warm.{label}")
    loader.round(prompts, most, min(_WARM_TOKENS, size.output_tokens))


def _rounds(
    loader: Loader, workload: Workload, concurrency: int, asked: Asked, size: Sizes
) -> Sequence[Round]:
    rounds: list[Round] = []
    while not enough(rounds, concurrency, asked.most):
        rounds.append(_round(loader, workload, concurrency, size, len(rounds)))
    return rounds


def _round(loader: Loader, workload: Workload, concurrency: int, size: Sizes, repeat: int) -> Round:
    """The seed is of the place in the run alone: each strategy gets the same prompts."""
    prompts = workload.prompts(size.chars, max(2, concurrency), f"{concurrency}.{repeat}")
    return loader.round(prompts, concurrency, size.output_tokens)


def _keep(
    found: Measured, workload: Workload, concurrency: int, rounds: Sequence[Round], label: str, say: Say
) -> None:
    totals = [r.tokens_per_s(concurrency) for r in rounds]
    cell = make_cell(workload.name, concurrency, rounds)
    found.cells.append(cell)
    found.totals[workload.name, concurrency] = totals
    sure = f"±{spread(totals).relative:.1%}" if len(totals) > 1 else "once"
    drafts = f", {cell.acceptance.mean_length:.2f} tokens a step" if cell.acceptance else ""
    say(
        f"{label}: {workload.name} at {concurrency}: {cell.tokens_per_s_total.median:.1f} tokens/s {sure}"
        f" ({len(rounds)} repeats){drafts}"
    )


def _outputs(loader: Loader, asked: Asked, size: Sizes, found: Measured) -> None:
    """The same prompts one by one and all at once: what only the batch changes is no fault of a draft."""
    prompts = asked.workloads[0].prompts(size.chars, _COMPARED, "same")
    tokens = min(size.output_tokens, _COMPARED_TOKENS)
    found.alone = loader.round(prompts, 1, tokens, texts=True).texts
    found.in_batch = loader.round(prompts, _COMPARED, tokens, texts=True).texts
