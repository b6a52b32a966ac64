"""One host's bench: what it serves, or several strategies one after the other and back."""

import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from checks.bench.model import BenchResult
from checks.bench.verdict import decide
from checks.facts import HostFacts
from inventory.errors import CheckRefused
from inventory.model import Deployment
from provision import layout
from provision.bench.compare import Compare, compare_strategies
from provision.bench.found import Bench, estimates_of, runs_of, speedups_of
from provision.bench.measure import Asked, Say
from provision.bench.serving import measure_served
from provision.converge import Options, look
from provision.hostlock import host_lock
from provision.shell import Shell
from provision.want import want_for

__all__ = ["bench_host"]


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
    bench = Bench(shell, d, asked, options, say, facts, _served(facts, d), force)
    if compare.strategies:
        compare_strategies(bench, compare)
    else:
        _as_served(bench)
    return _result(bench, time.monotonic() - began)


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


def _as_served(b: Bench) -> None:
    want = want_for(b.shell.host, b.deployment, b.facts, b.options.sources, b.say)
    if want.release.id != b.current:
        raise CheckRefused(
            f"release {b.current} is served, the deployment is release {want.release.id}",
            hint=f"invoke provision --host {b.facts.host} first",
            host=b.facts.host,
        )
    with host_lock(b.shell, f"bench {b.deployment.name}"):
        measure_served(b, want)


def _result(b: Bench, seconds: float) -> BenchResult:
    assert b.size is not None or not b.found
    d = b.deployment
    speedups = speedups_of(b)
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
        strategies=tuple(runs_of(b)),
        speedups=tuple(speedups),
        draft_lengths=tuple(estimates_of(b)),
        verdict=decide(b.runs, speedups),
        notes=b.size.notes if b.size else (),
    )


def _version() -> str:
    try:
        return version("eyas")
    except PackageNotFoundError:
        return ""
