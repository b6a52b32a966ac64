"""`invoke bench` over its hosts: connect, measure, print; each host's failure is its own."""

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from checks.bench.model import AgainstBaseline, BenchResult
from checks.bench.report import render, render_against
from checks.bench.workloads import DOMAINS, workload
from inventory.errors import CheckRefused, EyasError, HostUnreachable, UsageError
from inventory.load import deployment_for
from inventory.model import Host
from provision.bench.against import against_baseline
from provision.bench.apply import apply_verdict
from provision.bench.compare import Compare
from provision.bench.measure import Asked
from provision.bench.onhost import bench_host
from provision.bench.store import keep
from provision.bench.strategies import parse_drafts, parse_strategies
from provision.converge import Options
from provision.explain import explain
from provision.fleet import each_host
from provision.preflight import preflight
from provision.report import Progress
from provision.run import Flags, confirmer, connector
from provision.shell import Shell
from provision.sources import Sources

__all__ = ["Words", "bench_hosts", "parse"]

Connect = Callable[[Host], AbstractContextManager[Shell]]

#: The lengths of the usual coding request, where nobody said others.
PROMPT_TOKENS, OUTPUT_TOKENS = 1200, 600
CONCURRENCY = "1,2,4,8,16,32"
_MOST_CONCURRENCY = 1024


@dataclass(frozen=True)
class Words:
    """The command line, parsed."""

    asked: Asked
    compare: Compare = field(default_factory=Compare)
    against: bool = False
    apply: bool = False
    force: bool = False


def parse(
    *,
    concurrency: str,
    workloads: str,
    compare: str,
    drafts: str,
    against: str,
    apply: bool,
    tune: bool,
    prompt_tokens: int | None,
    output_tokens: int | None,
    repeats: int,
    force: bool,
) -> Words:
    """Raises UsageError before any host is touched."""
    if against not in {"", "baseline"}:
        raise UsageError(f"--against {against!r} is not known", hint="--against baseline")
    if against and (compare or apply):
        raise UsageError("--against looks at what serves, --compare and --apply change it", hint="give one")
    if drafts and not compare:
        raise UsageError("--drafts names drafts for --compare", hint="add --compare none,eagle3")
    if apply and not compare:
        raise UsageError("--apply writes the verdict of a comparison", hint="add --compare none,eagle3")
    names = [w.strip() for w in workloads.split(",") if w.strip()]
    chosen = tuple(workload(n) for n in dict.fromkeys(names or ["code"]))
    others = tuple(workload(n) for n in DOMAINS if n not in names) if compare else ()
    asked = Asked(
        workloads=chosen,
        concurrency=_numbers(concurrency or CONCURRENCY),
        prompt_tokens=_positive("--prompt-tokens", prompt_tokens, PROMPT_TOKENS),
        output_tokens=_positive("--output-tokens", output_tokens, OUTPUT_TOKENS, least=2),
        exact=prompt_tokens is not None or output_tokens is not None,
        most=_positive("--repeats", repeats, 1),
        domains=others,
    )
    strategies = parse_strategies(compare) if compare else ()
    return Words(asked, Compare(strategies, parse_drafts(drafts), tune), bool(against), apply, force)


def _numbers(text: str) -> tuple[int, ...]:
    words = [w.strip() for w in text.split(",")]
    if not all(w.isdecimal() and 0 < int(w) <= _MOST_CONCURRENCY for w in words):
        raise UsageError(f"--concurrency {text!r}: numbers from 1 to {_MOST_CONCURRENCY}", hint=CONCURRENCY)
    return tuple(sorted({int(w) for w in words}))


def _positive(option: str, value: int | None, usual: int, *, least: int = 1) -> int:
    if value is not None and value < least:
        raise UsageError(f"{option} {value} is less than {least}", hint=f"{option} {usual}")
    return usual if value is None else value


def bench_hosts(
    hosts: Sequence[Host],
    deployment: str | None,
    words: Words,
    flags: Flags,
    *,
    endpoint: str | None = None,
    connect: Connect | None = None,
) -> int:
    """The worst host decides: 0 measured, 4 slower than its baseline, 3 nobody can tell, else its error's."""
    sources = Sources(wheelhouse=Path(flags.wheelhouse).expanduser() if flags.wheelhouse else None)
    sources.endpoint = endpoint or sources.endpoint
    wanted = {h.name: deployment_for(h, deployment) for h in hosts}
    options = Options(sources=sources, preflight=preflight if flags.preflight else None, explain=explain)
    agreed = _agreed(words, flags)
    progress = Progress(sources.secrets.mask)
    opened: Connect = connect or connector(flags)
    stop = threading.Event()

    def one(host: Host) -> "BenchResult | AgainstBaseline | EyasError":
        say = _stoppable(progress.for_host(host.name), stop)
        try:
            if not agreed(host):
                raise CheckRefused("nobody agreed to the restarts", hint="--yes", host=host.name)
            with opened(host) as shell:
                if words.against:
                    return against_baseline(shell, wanted[host.name], options, say)
                return bench_host(
                    shell, wanted[host.name], words.asked, words.compare, options, say, force=words.force
                )
        except EyasError as e:
            e.host = e.host or host.name
            return e

    with _interruptible(hosts, stop):
        answers: list[tuple[Host, Any]] = [*zip(hosts, each_host(hosts, one, forks=flags.forks), strict=True)]
    for _, answer in answers:
        if isinstance(answer, BenchResult):
            _keep(answer)
    applied: list[str] = []
    try:
        applied = _apply(answers, deployment) if words.apply else []
    except EyasError as e:  # what was measured is told all the same
        answers.append((hosts[0], e))
    return _tell(answers, applied, as_json=flags.as_json)


def _keep(result: BenchResult) -> None:
    """A folder that can't be written costs the record, never the result."""
    try:
        keep(result)
    except EyasError as e:
        sys.stderr.write(f"not kept for reports: {e}\n")


class _Stopped(EyasError):
    """Ctrl-C while several hosts are measured: each ends at its next line and puts back what served."""

    exit_code = 130


def _stoppable(say: Callable[[str], None], stop: threading.Event) -> Callable[[str], None]:
    told = threading.Event()

    def tell(text: str) -> None:
        say(text)
        if stop.is_set() and not told.is_set():
            told.set()
            raise _Stopped("stopped; what served before serves")

    return tell


@contextlib.contextmanager
def _interruptible(hosts: Sequence[Host], stop: threading.Event) -> Iterator[None]:
    """With one host Ctrl-C comes through by itself; threads have to be told."""
    if len(hosts) == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_interrupt(_number: int, _frame: object) -> None:
        stop.set()
        sys.stderr.write("stopping after the cell that runs now; what served is put back\n")

    former = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def _agreed(words: Words, flags: Flags) -> Callable[[Host], bool]:
    if not words.compare.strategies:
        return lambda _: True
    ask = confirmer(flags.yes)
    names = ", ".join(words.compare.strategies)
    question = f"stop what it serves and serve {names} in turn, and then what it serves now again"
    return lambda host: ask(host.name, question)


def _apply(answers: Sequence[tuple[Host, Any]], deployment: str | None) -> list[str]:
    """The first host's verdict is written; a second host's that differs is an error that names both."""
    verdicts = {h.name: a.verdict for h, a in answers if isinstance(a, BenchResult) and a.verdict}
    versions = {h.name: a.engine_version for h, a in answers if isinstance(a, BenchResult)}
    if not verdicts:
        return []
    told = {(v.strategy, v.num_speculative_tokens, v.off_above) for v in verdicts.values()}
    if len(told) > 1:
        texts = "; ".join(f"{h}: {v.text}" for h, v in verdicts.items())
        raise CheckRefused(f"the hosts' verdicts differ: {texts}", hint="--apply with one host at a time")
    host = next(h for h, _ in answers if h.name in verdicts)
    return apply_verdict(host, deployment, verdicts[host.name], versions[host.name])


def _tell(answers: Sequence[tuple[Host, Any]], applied: list[str], *, as_json: bool) -> int:
    codes = [_code(a) for _, a in answers]
    if as_json:
        sys.stdout.write(json.dumps(_document(answers, applied, max(codes))) + "\n")
    else:
        out = Console(highlight=False, soft_wrap=True)
        for host, answer in answers:
            if isinstance(answer, BenchResult):
                out.print(render(answer))
            elif isinstance(answer, AgainstBaseline):
                out.print(render_against(host.name, answer))
        for line in applied:
            out.print(line, markup=False)
    for _, answer in answers:
        if isinstance(answer, EyasError):
            sys.stderr.write(f"{answer}\n")
    return max(codes)


def _document(answers: Sequence[tuple[Host, Any]], applied: list[str], code: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "task": "bench",
        "results": [json.loads(a.to_json()) for _, a in answers if isinstance(a, BenchResult)],
        "against_baseline": [
            {"host": h.name, **a.model_dump()} for h, a in answers if isinstance(a, AgainstBaseline)
        ],
        "failed": [
            {"host": h.name, "error": a.message, "hint": a.hint, "exit_code": a.exit_code}
            for h, a in answers
            if isinstance(a, EyasError)
        ],
        "applied": applied,
        "exit_code": code,
    }


def _code(answer: object) -> int:
    if isinstance(answer, EyasError):
        return answer.exit_code
    if isinstance(answer, AgainstBaseline):
        codes = {"pass": 0, "fail": CheckRefused.exit_code, "can't tell": HostUnreachable.exit_code}
        return codes[answer.answer]
    return 0
