"""One host's bench: what it serves, or several strategies one after the other and back."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from checks.bench.draft_length import best_length, lengths
from checks.bench.lossless import compare_outputs
from checks.bench.model import BenchResult, DraftLength, Speedup, StrategyRun
from checks.bench.statistics import paired_change
from checks.bench.verdict import by_concurrency, decide, gain
from checks.facts import HostFacts
from checks.planner.calibrate import read_log
from inventory.errors import CheckRefused, EyasError, HostUnreachable
from inventory.model import Deployment, Method, ModelRef
from provision import layout
from provision.bench.guard import serving_others
from provision.bench.load import open_loader
from provision.bench.measure import Asked, Measured, Sizes, measure, sizes
from provision.bench.strategies import variant, with_length
from provision.converge import Options, look, plan_changes
from provision.hostlock import host_lock
from provision.proof import baseline_key
from provision.service import activate, journal
from provision.shell import Shell
from provision.want import Want, want_for

__all__ = ["Compare", "bench_host"]

Say = Callable[[str], None]

#: Runs with another draft length after the first ones: the best by estimate, and once more if that moves.
_MOST_TUNED = 2


@dataclass(frozen=True)
class Compare:
    """``strategies`` with none first; empty: only what is served. ``tune``: also confirm the best length."""

    strategies: tuple[Method, ...] = ()
    drafts: dict[str, ModelRef] = field(default_factory=dict)
    tune: bool = True


@dataclass
class _Bench:
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


def bench_host(
    shell: Shell,
    d: Deployment,
    asked: Asked,
    compare: Compare,
    options: Options,
    say: Say,
    *,
    force: bool = False,
) -> BenchResult:
    """Measure. Raises EyasError; what served before serves again then, by us or by the host itself."""
    began = time.monotonic()
    facts = look(shell, d, options)
    bench = _Bench(shell, d, asked, options, say, facts, _served(facts, d), force)
    if compare.strategies:
        _compare(bench, compare)
    else:
        _as_served(bench)
    return _result(bench, time.monotonic() - began, tuned=_estimates(bench))


def _served(facts: HostFacts, d: Deployment) -> str:
    current = (facts.value("eyas.current", dict) or {}).get(d.name)
    unit = (facts.value("eyas.units", dict) or {}).get(f"{layout.unit_name(d.name)}.service") or {}
    if not current or unit.get("active") != "active":
        raise CheckRefused(
            f"{d.name} does not serve here: nothing can be measured",
            hint=f"invoke provision --host {facts.host} --deployment {d.name}",
            host=facts.host,
        )
    return str(current)


# ---- what is served


def _as_served(b: _Bench) -> None:
    want = want_for(b.shell.host, b.deployment, b.facts, b.options.sources, b.say)
    if want.release.id != b.current:
        raise CheckRefused(
            f"release {b.current} is served, the deployment is release {want.release.id}",
            hint=f"invoke provision --host {b.facts.host} first",
            host=b.facts.host,
        )
    with host_lock(b.shell, f"bench {b.deployment.name}"):
        _measure(b, want)


def _measure(b: _Bench, want: Want) -> None:
    d = want.deployment
    run = _named(d, want)
    with open_loader(b.shell, d.name) as loader:
        if b.size is None:
            b.size = sizes(loader, b.asked, force=b.force)
            for note in b.size.notes:
                b.say(note)
        found = measure(loader, b.asked, b.size, run.label, b.say, domains=d.draft.method != "none")
        gpu = loader.ask("hello")["gpu"]
    tokens = read_log(_start_log(b.shell, d.name)).get("tokens")
    missing = {} if tokens else {"kv_tokens": "the journal of its start does not tell"}
    cards = tuple(c["memory_mib"] for c in gpu["cards"]) if "cards" in gpu else None
    if cards is None:
        missing["gpu_memory_mib"] = gpu["missing"]
    told = {"kv_tokens": int(tokens) if tokens else None, "gpu_memory_mib": cards, "missing": missing}
    b.runs.append(
        run.model_copy(update={**told, "cells": tuple(found.cells), "acceptance": found.acceptance})
    )
    b.found[run.label] = found
    b.key, b.engine = baseline_key(want), (d.engine, want.engine.version, want.manifests["target"].commit)


def _named(d: Deployment, want: Want, error: str = "") -> StrategyRun:
    draft = d.draft
    return StrategyRun(
        strategy=draft.method,
        num_speculative_tokens=draft.num_speculative_tokens,
        draft=draft.model.label if draft.model else "",
        release=want.release.id,
        error=error,
    )


def _start_log(shell: Shell, deployment: str) -> str:
    unit = f"{layout.unit_name(deployment)}.service"
    now = shell.run(("systemctl", "show", "-P", "InvocationID", unit), timeout=20, check=False)
    return journal(shell, deployment, invocation=now.stdout.strip())


# ---- several, one after the other


def _compare(b: _Bench, compare: Compare) -> None:
    wants = list(_wants(b, [variant(b.deployment, m, compare.drafts) for m in compare.strategies]))
    # What serves now goes last: a restart less.
    wants.sort(key=lambda w: w.release.id == b.current)
    seconds = max(w.release.timeout_start_s for w in wants)
    with host_lock(b.shell, f"bench {b.deployment.name}"):
        for want in wants:
            _prepare(b, want)
        with serving_others(b.shell, b.deployment.name, b.current, seconds, b.say):
            for want in wants:
                _serve_and_measure(b, want)
            if compare.tune:
                _tune(b, {w.deployment.draft.method: w.deployment for w in wants})
    order = {m: n for n, m in enumerate(compare.strategies)}
    b.runs.sort(key=lambda r: order[r.strategy])


def _wants(b: _Bench, deployments: Sequence[Deployment]) -> Iterator[Want]:
    for d in deployments:
        want = want_for(b.shell.host, d, b.facts, b.options.sources, b.say)
        findings, _ = (
            b.options.preflight(want, b.facts, b.options.sources) if b.options.preflight else ([], [])
        )
        errors = [f for f in findings if f.severity.value == "error"]
        if errors:
            told = f"{errors[0].slug}: {errors[0].cause}"
            b.say(f"{d.draft.method} is left out: {told}")
            b.runs.append(_named(d, want, told))
        else:
            yield want


def _prepare(b: _Bench, want: Want) -> None:
    """Everything but the switch and the proof: these strategies serve for a while only."""
    for change in plan_changes(want, look(b.shell, want.deployment, b.options), b.options, b.say):
        if not change.disruptive and not change.title.startswith("proof"):
            b.say(change.title)
            change.apply(b.shell)


def _serve_and_measure(b: _Bench, want: Want) -> None:
    """A strategy that does not start is a result too; a lost link is not."""
    d = want.deployment
    try:
        if _link(b.shell, d.name) != want.release.id:
            b.say(f"serving {_named(d, want).label} for a while (release {want.release.id})")
            explain, most = b.options.explain, want.release.timeout_start_s
            activate(b.shell, d.name, want.release.id, most, explain=explain, bench=True)
        _measure(b, want)
    except HostUnreachable:
        raise
    except EyasError as e:
        if e.exit_code == 2:
            raise
        b.say(f"{_named(d, want).label} gave no result: {e.message}")
        b.runs.append(_named(d, want, e.message))


def _link(shell: Shell, deployment: str) -> str:
    got = shell.run(("readlink", "--", layout.current_link(deployment)), timeout=20, check=False)
    return got.stdout.strip().rsplit("/", 1)[-1]


def _tune(b: _Bench, wanted: dict[Method, Deployment]) -> None:
    """Serve the best strategy with the number of tokens that should be best, and see."""
    for _ in range(_MOST_TUNED):
        estimates, verdict = _estimates(b), decide(b.runs, _speedups(b))
        if not estimates or verdict is None:
            return
        # Where none pays as it was measured, another length of the most promising one may.
        hopeful = max(estimates, key=lambda e: e.speedup).strategy
        method = hopeful if verdict.strategy == "none" else verdict.strategy
        best = best_length([e for e in estimates if e.strategy == method], _gains(b, method))
        if best is None or best in _gains(b, method):
            return
        b.say(f"{method} should be best with {best} tokens: measuring that")
        for want in _wants(b, [with_length(wanted[method], best)]):
            _prepare(b, want)
            _serve_and_measure(b, want)
            if b.runs[-1].error:
                return


def _gains(b: _Bench, method: Method) -> dict[int, float]:
    """Measured speedup by number of tokens."""
    speedups = _speedups(b)
    return {
        r.num_speculative_tokens: gain(points)
        for r in b.runs
        if r.strategy == method and r.num_speculative_tokens and (points := by_concurrency(speedups, r.label))
    }


def _estimates(b: _Bench) -> list[DraftLength]:
    """By strategy, from its last run; a length that was measured says so with its measured speedup."""
    plain = next((r for r in b.runs if r.strategy == "none" and r.cells), None)
    out: dict[Method, list[DraftLength]] = {}
    for run in b.runs if plain else ():
        assert plain is not None
        if run.cells and run.strategy != "none" and (found := lengths(run, plain)):
            out[run.strategy] = found
    return [_measured(e, _gains(b, m)) for m, found in out.items() for e in found]


def _measured(e: DraftLength, gains: dict[int, float]) -> DraftLength:
    known = gains.get(e.num_speculative_tokens)
    return e.model_copy(update={"speedup": known, "measured": True}) if known else e


def _speedups(b: _Bench) -> list[Speedup]:
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


# ---- the result


def _result(b: _Bench, seconds: float, *, tuned: Sequence[DraftLength]) -> BenchResult:
    assert b.size is not None or not b.found
    d = b.deployment
    speedups = _speedups(b)
    gpus = b.facts.value("gpus", list) if d.device == "cuda" else None
    engine, engine_version, commit = b.engine
    return BenchResult(
        host=b.facts.host,
        deployment=d.name,
        taken_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(seconds, 1),
        eyas_version=_version(),
        engine=engine or d.engine,
        engine_version=engine_version,
        device=d.device,
        gpus=tuple(str(g.get("name")) for g in gpus or () if isinstance(g, dict)),
        tensor_parallel=d.tensor_parallel,
        quantization=d.quantization,
        target=f"{d.target.label}@{commit}" if commit else d.target.label,
        prompt_tokens=b.size.prompt_tokens if b.size else b.asked.prompt_tokens,
        output_tokens=b.size.output_tokens if b.size else b.asked.output_tokens,
        baseline_key=b.key,
        strategies=tuple(_with_losslessness(b)),
        speedups=tuple(speedups),
        draft_lengths=tuple(tuned),
        verdict=decide(b.runs, speedups),
        notes=b.size.notes if b.size else (),
    )


def _with_losslessness(b: _Bench) -> Iterator[StrategyRun]:
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


def _version() -> str:
    try:
        return version("eyas")
    except PackageNotFoundError:
        return ""
