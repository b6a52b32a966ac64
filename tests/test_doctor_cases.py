"""The doctor against public cases, own cases, real logs, and all of them in other clothes."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from checks.doctor import Inputs, Report, catalogue, diagnose
from checks.doctor.score import load_case, score, wrong_first
from checks.outcome import Severity, Status

CASES = Path(__file__).resolve().parent / "cases"


@dataclass(frozen=True, eq=False)
class Own:
    name: str
    expect: str
    #: The file it stands in.
    file: str = "public"
    log: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    unit: str | None = None
    metrics: str | None = None
    engine: str = "vllm"
    wrong: tuple[str, ...] = ()
    fix_value: str = ""
    fix_has: str = ""

    def inputs(self, dress: Callable[[str], str] | None = None) -> Inputs:
        text = dress(self.log) if dress else self.log
        return Inputs(
            log=[text.encode()] if self.log else None,
            facts=self.facts,
            unit=self.unit,
            metrics=self.metrics,
            engine=self.engine,
        )


@cache
def own_cases() -> tuple[Own, ...]:
    paths = sorted((CASES / "own").glob("*.toml"))
    return tuple(
        Own(file=path.stem, **raw) for path in paths for raw in tomllib.loads(path.read_text())["case"]
    )


@cache
def public_cases() -> tuple[Own, ...]:
    found = []
    for folder in sorted((CASES / "public").iterdir()):
        case, inputs = load_case(folder)
        log = (folder / "log.txt").read_text()
        facts = dict(inputs.facts or {})
        found.append(
            Own(
                folder.name,
                case["expected"]["code"],
                log=log,
                facts=facts,
                unit=inputs.unit,
                metrics=inputs.metrics,
                engine=inputs.engine,
            )
        )
    return tuple(found)


def crashed(report: Report) -> list[str]:
    return [f"{o.check}: {o.why}" for o in report.outcomes if o.status is Status.CRASHED]


def first(report: Report) -> str:
    return report.findings[0].slug if report.findings else ""


def test_public_cases() -> None:
    result = score(CASES / "public").as_json()
    assert result["cases"] == 59
    assert result["wrong_first"] == 0
    assert result["top1"] >= 57, result["missed"]


#: What engines advise, and what does not help with these causes.
HOLLOW = {
    "": "PYTORCH_(?:CUDA_)?ALLOC_CONF|chmod (?:-R )?777|reinstall",
    "kv-cache-no-memory-cotenant": "gpu_memory_utilization",
    "gpu-memory-profile-race": "gpu_memory_utilization",
    "tp-unbalanced-gpus": "mem_fraction",
    "hf-forbidden": "HF_TOKEN|hub_token",
    "spec-low-acceptance": "num_speculative_tokens",
    "spec-context-length-mismatch": "enforce_eager",
    "tp-custom-allreduce": "NCCL_P2P_DISABLE",
}


def faults(case: Own, report: Report) -> Iterator[str]:
    """What is wrong with the report of a case."""
    yield from crashed(report)
    if first(report) != case.expect:
        yield f"expected {case.expect}, found {[f.slug for f in report.findings]}"
        return
    if wrong_first(report, case.wrong):
        yield f"a wrong fix comes first: {report.findings[0].fix}"
    fix = report.findings[0].fix[0]
    if case.fix_value not in {"", fix.value} or case.fix_has not in fix.value:
        yield f"the fix is {fix.value!r}, not {case.fix_value or case.fix_has!r}"
    if "{" in (fix.value.replace("{", "", 1) if "speculative" in fix.value else fix.value):
        yield f"a value is missing in {fix.value!r}"
    yield from hollow(case, report)


def hollow(case: Own, report: Report) -> Iterator[str]:
    """The engine's own advice, where that comes first."""
    fix = report.findings[0].fix[0]
    said = f"{fix.change} {fix.value} {fix.command}"
    if any(re.search(HOLLOW.get(slug, "(?!)"), said) for slug in ("", case.expect)):
        yield f"hollow advice: {said}"


@pytest.mark.parametrize("file", sorted({c.file for c in own_cases()}))
def test_own_cases(file: str) -> None:
    wrong = {c.name: list(faults(c, diagnose(c.inputs()))) for c in own_cases() if c.file == file}
    assert {name: told for name, told in wrong.items() if told} == {}


def test_the_engines_own_advice_never_comes_first() -> None:
    """Of a public case; own cases are held to it with the rest."""
    wrong = {c.name: list(hollow(c, diagnose(c.inputs()))) for c in public_cases()}
    assert {name: told for name, told in wrong.items() if told} == {}


def test_every_public_cause_has_own_cases() -> None:
    public = {line.split()[0] for line in (CASES / "TAXONOMY.txt").read_text().splitlines()[1:]}
    assert len(public) == 87
    assert public - {c.expect for c in own_cases()} == set()


def journal(text: str) -> str:
    return "".join(
        f"Nov 30 12:00:{i % 60:02d} host-1 vllm[123]: {x}\n" for i, x in enumerate(text.splitlines())
    )


def docker_json(text: str) -> str:
    tail = {"stream": "stderr", "time": "2026-01-01T00:00:00.000000000Z"}
    rows = ({"log": x + "\n", **tail} for x in text.splitlines())
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def each(template: str) -> Callable[[str], str]:
    return lambda text: "".join(template.replace("@", x) + "\n" for x in text.splitlines())


def wrapped(text: str, width: int) -> str:
    lines = text.splitlines()
    return "".join(x[i : i + width] + "\n" for x in lines for i in range(0, max(len(x), 1), width))


OTHERS = (
    "(Worker_TP2 pid=99) ERROR 11-05 12:19:33 [multiproc_executor.py:708] WorkerProc hit an exception.",
    "(Worker_TP3 pid=98) INFO 11-05 12:19:33 [multiproc_executor.py:558] Parent process exited, terminating",
    "[rank2]:[W1105 12:19:34.5 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not called",
)


def interleaved(text: str) -> str:
    lines = text.splitlines()
    return "".join(f"{x}\n{OTHERS[i % 3]}\n" if i % 2 == 0 else f"{x}\n" for i, x in enumerate(lines))


ANOTHER = """Nov 30 11:00:00 h systemd[1]: Started vllm.service - vLLM.
Nov 30 11:00:09 h vllm[7]: ValueError: The number of required GPUs exceeds the total number of available GPUs
Nov 30 11:00:10 h systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE
Nov 30 12:00:00 h systemd[1]: Started vllm.service - vLLM.
"""
SYMPTOMS = """
(APIServer pid=3) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)
Nov 30 10:00:00 b systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE
Nov 30 10:00:00 b systemd[1]: vllm.service: Failed with result 'exit-code'.
Nov 30 10:00:02 b systemd[1]: vllm.service: Scheduled restart job, restart counter is at 4.
"""
DRESSES: dict[str, Callable[[str], str]] = {
    "journal": journal,
    "journal-iso": each("2026-11-30T12:00:00+0000 host-1 vllm[123]: @"),
    "kubernetes": each("2026-01-03T10:20:30.123456789Z stderr F @"),
    "compose": each("vllm-1  | @"),
    "colour": each("\x1b[1;36m(EngineCore_DP0 pid=3)\x1b[0;0m \x1b[31m@\x1b[0m"),
    "ray": each("(RayWorkerWrapper pid=123, ip=10.0.0.2) @"),
    "sglang": each("[2026-01-01 10:00:00 DP0 TP1] @"),
    "logging": each("2026-01-01 10:00:00,123 - vllm.engine - ERROR - @"),
    "logfmt": each('level=error ts=2026-01-01T10:00:00Z caller=x msg="@"'),
    "docker-json": docker_json,
    "loguru": each("2026-01-01 10:00:00.123 | ERROR    | vllm.engine:run:77 - @"),
    "pods": each("[pod/vllm-0/engine] @"),
    "rank": each("[rank3]: @"),
    "old-workers": each("(VllmWorkerProcess pid=31) ERROR 10-10 10:10:10 multiproc_worker_utils.py:231] @"),
    "quoted": each("> @"),
    "wrapped-at-80": lambda text: wrapped(text, 80),
    "wrapped-at-120": lambda text: wrapped(text, 120),
    "other-ranks": interleaved,
    "another-cause-before": lambda text: ANOTHER + text,
    "windows": lambda text: text.replace("\n", "\r\n"),
    "symptoms-after": lambda text: text + SYMPTOMS,
    "two-starts": lambda text: text + "\nNov 30 12:00:00 h systemd[1]: Started vllm.service - vLLM.\n" + text,
}
#: A log in these forms loses what decides: a hang has no line of its own, a wrapped line two writers.
WRAPPED = {"heads-wrapped-at-80"}
HANGS = {"mig-nvml-handle", "p2p-hang-threadripper"}
LOST: dict[str, set[str]] = {
    **dict.fromkeys(("colour", "ray", "rank", "old-workers", "other-ranks"), WRAPPED),
    "another-cause-before": HANGS,
}
#: Each dress on one case in so many of each family, of which it meets one at least.
ONE_IN = 8


def families() -> dict[str, list[Own]]:
    """Code family -> the cases that have a log."""
    found: dict[str, list[Own]] = {}
    for case in own_cases() + public_cases():
        if case.log.strip():
            found.setdefault(catalogue().by_slug[case.expect].family, []).append(case)
    return found


def wearing(number: int) -> list[Own]:
    """The cases of one dress: other ones for its neighbours, so that each case meets several."""
    return [
        case for cases in families().values() for case in cases[number % min(ONE_IN, len(cases)) :: ONE_IN]
    ]


def test_each_case_meets_several_dresses() -> None:
    met = Counter(case for number in range(len(DRESSES)) for case in wearing(number))
    assert {c.name: met[c] for cases in families().values() for c in cases if met[c] < 2} == {}


def missed_in(dress: str, cases: list[Own]) -> dict[str, str]:
    """The cases whose cause is no longer found, with what is found."""
    found = {c: first(diagnose(c.inputs(DRESSES[dress]))) for c in cases}
    return {
        c.name: slug for c, slug in found.items() if slug != c.expect and c.name not in LOST.get(dress, ())
    }


@pytest.mark.parametrize("number", range(len(DRESSES)), ids=sorted(DRESSES))
def test_same_cause_in_other_clothes(number: int) -> None:
    assert missed_in(sorted(DRESSES)[number], wearing(number)) == {}


@pytest.mark.long
@pytest.mark.parametrize("dress", sorted(DRESSES))
def test_same_cause_in_other_clothes_every_case(dress: str) -> None:
    assert missed_in(dress, [c for cases in families().values() for c in cases]) == {}


def real_logs() -> list[Path]:
    return sorted((CASES / "real").glob("*.txt"))


@pytest.mark.parametrize("path", real_logs(), ids=lambda p: p.stem)
def test_real_log(path: Path) -> None:
    expected = tomllib.loads((CASES / "real" / "expected.toml").read_text())
    report = diagnose(Inputs(log=[path.read_bytes()], facts={}))
    assert crashed(report) == []
    if path.stem in expected:
        assert first(report) == expected[path.stem]
        assert report.errors
    else:
        assert not report.errors, report.verdict
        assert all(f.slug == "spec-low-acceptance" for f in report.findings), report.verdict


def test_healthy_logs_stay_clean_in_other_clothes() -> None:
    expected = tomllib.loads((CASES / "real" / "expected.toml").read_text())
    healthy = [path for path in real_logs() if path.stem not in expected]
    for number, path in enumerate(healthy):
        name = ("journal", "kubernetes", "docker-json")[number % 3]
        report = diagnose(Inputs(log=[DRESSES[name](path.read_text()).encode()]))
        assert not report.errors, (path.stem, name, report.verdict)


def test_causes_of_real_failures_come_with_numbers() -> None:
    def fix(name: str) -> str:
        report = diagnose(Inputs(log=[(CASES / "real" / f"{name}.txt").read_bytes()]))
        return report.findings[0].fix[0].value

    assert fix("h200-q7-u17-len32k") == "29264"
    assert fix("cpu-oom_kvbytes") == "896"
    assert fix("cpu-len_pos") == "2048"
    assert fix("h200-tp2-badheads") == "1"
    assert fix("cpu-tp2") == '"0|1"'
    assert fix("h200-oom-weights") == "2207"


def test_every_code_fires_somewhere() -> None:
    """A firing case a code (those of preconditions, from 101, have theirs); each case is quiet for others."""
    fired = {c.expect for c in own_cases() + public_cases()}
    fired |= set(tomllib.loads((CASES / "real" / "expected.toml").read_text()).values())
    ours = {c.slug for c in catalogue().codes.values() if int(c.code[-3:]) < 101}
    rest = ours - fired
    assert rest == {f.slug for name in sorted(rest) for f in extra(name).findings[:1]}


def extra(slug: str) -> Report:
    return diagnose(EXTRAS[slug])


FRAME = '  File "vllm/v1/worker/gpu_model_runner.py", line 2301, in '
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
EXTRAS: dict[str, Inputs] = {
    slug: Inputs(log=[text.encode()])
    for slug, text in {
        "oom-profiling": f"INFO Model loading took 14.2 GiB and 3.1 seconds\n{FRAME}profile_run\n{OOM}",
        "oom-runtime": f"INFO:     Application startup complete.\n{FRAME}execute_model\n{OOM}",
        "hub-unreachable": "OSError: We couldn't connect to 'https://huggingface.co' to load the files\n",
        "model-arch-unsupported": "ValueError: Model architectures ['Glm9ForCausalLM'] are not supported\n",
        "service-restart-loop": "systemd[1]: vllm.service: Start request repeated too quickly.\n",
        "env-value-empty": "ValueError: invalid literal for int() with base 10: ''\n",
        "unrecognised-failure": "ZeroDivisionError: x\nRuntimeError: Engine core initialization failed.\n",
    }.items()
}
EXTRAS["spec-silently-off"] = Inputs(
    facts={"flags": '--speculative-config \'{"method": "eagle3"}\''},
    metrics="# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total 5000\n",
)


def test_severity_of_speed_matters_is_warning() -> None:
    report = diagnose(Inputs(metrics='{"draft_acceptance_rate": 0.03}'))
    assert report.findings[0].severity is Severity.WARNING
    assert not report.errors
