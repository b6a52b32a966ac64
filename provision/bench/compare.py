"""Several strategies one after the other, the best once more with the draft length that should be best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from checks.bench.draft_length import best_length
from checks.bench.verdict import decide
from inventory.errors import ChangeFailed
from inventory.model import Deployment, Method, ModelRef
from provision import layout
from provision.bench.found import Bench, estimates_of, gains_of, speedups_of
from provision.bench.guard import serving_others
from provision.bench.serving import measure_served, named
from provision.bench.strategies import variant, with_length
from provision.converge import look, plan_changes
from provision.hostlock import host_lock
from provision.service import activate
from provision.shell import Shell
from provision.want import Want, want_for

__all__ = ["Compare", "compare_strategies"]

#: Runs with another draft length after the first ones: the best by estimate, and once more if that moves.
_MOST_TUNED = 2


@dataclass(frozen=True)
class Compare:
    """``strategies`` with none first; empty: only what is served. ``tune``: also confirm the best length."""

    strategies: tuple[Method, ...] = ()
    drafts: dict[str, ModelRef] = field(default_factory=dict)
    tune: bool = True


def compare_strategies(b: Bench, compare: Compare) -> None:
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


def _wants(b: Bench, deployments: Sequence[Deployment]) -> Iterator[Want]:
    for d in deployments:
        want = want_for(b.shell.host, d, b.facts, b.options.sources, b.say)
        findings, _ = (
            b.options.preflight(want, b.facts, b.options.sources) if b.options.preflight else ([], [])
        )
        errors = [f for f in findings if f.severity.value == "error"]
        if errors:
            told = f"{errors[0].slug}: {errors[0].cause}"
            b.say(f"{d.draft.method} is left out: {told}")
            b.runs.append(named(d, want, told))
        else:
            yield want


def _prepare(b: Bench, want: Want) -> None:
    """Everything but the switch and the proof: these strategies serve for a while only."""
    for change in plan_changes(want, look(b.shell, want.deployment, b.options), b.options, b.say):
        if not change.disruptive and not change.title.startswith("proof"):
            b.say(change.title)
            change.apply(b.shell)


def _serve_and_measure(b: Bench, want: Want) -> None:
    """A strategy that does not start or breaks under load is a result too; a lost link is not."""
    d = want.deployment
    try:
        if _link(b.shell, d.name) != want.release.id:
            b.say(f"serving {named(d, want).label} for a while (release {want.release.id})")
            explain, most = b.options.explain, want.release.timeout_start_s
            activate(b.shell, d.name, want.release.id, most, explain=explain, bench=True)
        measure_served(b, want)
    except ChangeFailed as e:
        b.say(f"{named(d, want).label} gave no result: {e.message}")
        b.runs.append(named(d, want, e.message))


def _link(shell: Shell, deployment: str) -> str:
    got = shell.run(("readlink", "--", layout.current_link(deployment)), timeout=20, check=False)
    return got.stdout.strip().rsplit("/", 1)[-1]


def _tune(b: Bench, wanted: dict[Method, Deployment]) -> None:
    """Serve the best strategy with the number of tokens that should be best, and see."""
    for _ in range(_MOST_TUNED):
        estimates, verdict = estimates_of(b), decide(b.runs, speedups_of(b))
        if not estimates or verdict is None:
            return
        # Where none pays as it was measured, another length of the most promising one may.
        hopeful = max(estimates, key=lambda e: e.speedup).strategy
        method = hopeful if verdict.strategy == "none" else verdict.strategy
        best = best_length([e for e in estimates if e.strategy == method], gains_of(b, method))
        if best is None or best in gains_of(b, method):
            return
        b.say(f"{method} should be best with {best} tokens: measuring that")
        for want in _wants(b, [with_length(wanted[method], best)]):
            _prepare(b, want)
            _serve_and_measure(b, want)
            if b.runs[-1].error:
                return
