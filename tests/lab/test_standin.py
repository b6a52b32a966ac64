"""The stand-in engine does what tests of the rest rely on: the command, the answers, the ways to fail."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from inventory.catalogue import load_catalogue
from inventory.command import render
from inventory.load import find_deployment, list_deployments, load_deployment
from inventory.locks import read_lock
from inventory.model import Deployment
from tests.lab.assets.wheelhouse import mismatches
from tests.lab.engine.build import build_standin_wheelhouse, options_of
from tests.lab.engine.vllm import core, metrics, options, refuse, start
from tests.lab.engine.vllm.say import Log
from tests.lab.engine.vllm.settings import SERVING_FAULTS, START_FAULTS, Settings

VERSION = "0.33.0"
SPEC = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 448,
    "max_position_embeddings": 2048,
}
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)


def model(folder: Path, weights: bytes | None = WEIGHTS, **changes: Any) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield build_standin_wheelhouse(VERSION).dir


@pytest.fixture(scope="module")
def installed(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site-packages")
    with ZipFile(next(wheelhouse.glob("vllm-*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder


def write(file: Path, settings: dict[str, Any]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"start_s": 0, "tokens_per_s": 2000, "death_exit_s": 0.2} | settings))
    new.rename(file)


@dataclass
class Running:
    """One started stand-in; ``settings`` writes the file that it watches."""

    url: str
    file: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".log")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self) -> tuple[int, str]:
        """Exit code and log, once it has ended."""
        return self.process.wait(timeout=10), self.log.read_text()

    def settings(self, **values: Any) -> None:
        write(self.file, values)

    def ask(self, path: str, body: Any = None, *, timeout: float = 10, key: str = "") -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            request = urllib.request.Request(self.url + path, data=data, headers=headers)
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def text(self, prompt: str, tokens: int = 40, **more: Any) -> str:
        status, body = self.ask("/v1/completions", {"prompt": prompt, "max_tokens": tokens, **more})
        assert status == 200, body
        return str(json.loads(body)["choices"][0]["text"])

    def children(self, pid: int) -> list[int]:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


Start = Callable[..., Running]


def launch(
    installed: Path, folder: Path, *flags: str, env: dict[str, str] | None = None, **settings: Any
) -> Running:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = folder / "target"
    if not target.exists():
        model(target)
    file = folder / f"settings-{port}.json"
    write(file, settings)
    argv = [
        sys.executable,
        "-m",
        "vllm.cli",
        "serve",
        str(target),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    full = {**os.environ, "PYTHONPATH": str(installed), "EYAS_STANDIN_FILE": str(file), **(env or {})}
    with file.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen([*argv, *flags], env=full, stderr=log)
    return Running(f"http://127.0.0.1:{port}", file, process)


@pytest.fixture
def start_engine(installed: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def run(*flags: str, ready: bool = True, env: dict[str, str] | None = None, **settings: Any) -> Running:
        one = launch(installed, tmp_path, *flags, env=env, **settings)
        started.append(one)
        return _ready(one) if ready else one

    yield run
    for one in started:
        one.stop()


@pytest.fixture(scope="module")
def steady(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One engine with speculation, for tests that leave it as it was."""
    one = launch(installed, tmp_path_factory.mktemp("steady"), "--speculative-config", json.dumps(SPEC))
    yield _ready(one)
    one.stop()


def _ready(one: Running) -> Running:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and one.process.poll() is None:
        try:
            if one.ask("/health", timeout=1)[0] == 200:
                return one
        except OSError:
            time.sleep(0.02)
    one.stop()
    pytest.fail(f"the stand-in did not start: {one.log.read_text()}")


@pytest.mark.process
def test_speculation_changes_the_pace_and_never_the_text(start_engine: Start, steady: Running) -> None:
    plain, quick = start_engine(), steady
    before = _series(quick)
    prompts = ["def f(x):", "one two three", "\u00fcber"]
    assert [plain.text(p) for p in prompts] == [quick.text(p) for p in prompts]
    assert "spec_decode" not in plain.ask("/metrics")[1]
    seen = {name: value - before.get(name, 0) for name, value in _series(quick).items()}
    drafted = seen["vllm:spec_decode_num_draft_tokens_total"]
    assert seen["vllm:spec_decode_num_accepted_tokens_total"] / drafted == pytest.approx(0.7, abs=0.05)
    assert seen["vllm:generation_tokens_total"] == 120
    assert seen["vllm:num_requests_running"] == 0


def _series(engine: Running) -> dict[str, float]:
    lines = engine.ask("/metrics")[1].splitlines()
    return {line.split("{")[0]: float(line.split()[-1]) for line in lines if line[0] != "#"}


@pytest.mark.process
def test_a_stream_carries_several_tokens_a_chunk_and_ends_with_usage(steady: Running) -> None:
    engine = steady
    asked = {"prompt": "a b", "max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}}
    status, body = engine.ask("/v1/completions", asked)
    *events, done = [line.removeprefix("data: ") for line in body.splitlines() if line]
    chunks = [json.loads(e) for e in events]
    assert (status, done) == (200, "[DONE]")
    assert chunks[-1]["usage"] == {"prompt_tokens": 2, "total_tokens": 32, "completion_tokens": 30}
    assert len(chunks) < 20
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == engine.text("a b", 30)
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == "length"


@pytest.mark.process
def test_an_api_key_guards_v1_alone(start_engine: Start) -> None:
    engine = start_engine(env={"VLLM_API_KEY": "sesame"})
    statuses = [engine.ask("/v1/models", key=k)[0] for k in ("", "wrong", "sesame")]
    assert statuses == [401, 401, 200]
    assert engine.ask("/health")[0] == engine.ask("/metrics")[0] == 200
    engine.process.terminate()
    code, log = engine.ended()
    assert code == 0
    assert "sesame" not in log


WRONG: list[tuple[str, Any, int, str]] = [
    ("/v1/completions", {"prompt": "x", "model": "other"}, 404, "The model `other` does not exist."),
    ("/v1/completions", {"prompt": "x", "max_tokens": 5000}, 400, "maximum context length is 2048 tokens"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
    ("/v1/completions", {"prompt": ""}, 400, "prompt must be"),
    ("/v1/completions", [], 400, "must be a JSON object"),
    ("/v1/completions", None, 405, "Method Not Allowed"),
    ("/v1/chat/completions", {"messages": 3}, 400, "messages must be"),
    ("/v1/nothing", None, 404, "Not Found"),
]


@pytest.mark.process
def test_wrong_requests(steady: Running) -> None:
    for path, body, status, said in WRONG:
        got, text = steady.ask(path, body)
        assert (got, said in text) == (status, True), text


@pytest.fixture
def one_engine(start_engine: Start) -> Running:
    return start_engine()


@pytest.mark.process
def test_a_dead_worker_is_503_and_then_exit_0(one_engine: Running) -> None:
    (engine_core,) = one_engine.children(one_engine.process.pid)
    (worker,) = one_engine.children(engine_core)
    one_engine.settings(death_exit_s=1)
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while one_engine.ask("/health")[0] == 200 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert one_engine.ask("/health")[0] == 503
    code, log = one_engine.ended()
    assert code == 0
    assert "died unexpectedly, shutting down executor" in log


@pytest.mark.process
def test_a_stopped_process_hangs_completions_but_not_health(steady: Running) -> None:
    (engine_core,) = steady.children(steady.process.pid)
    for stopped in (engine_core, *steady.children(engine_core)):
        os.kill(stopped, signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                steady.ask("/v1/completions", {"prompt": "x"}, timeout=0.2)
            assert steady.ask("/health")[0] == 200
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert steady.text("y", 3)


@pytest.mark.process
def test_faults_while_serving_come_and_go(start_engine: Start) -> None:
    engine = start_engine("--speculative-config", json.dumps(SPEC))
    right = engine.text("a prompt")
    engine.settings(fault="garbage")
    assert engine.text("a prompt") == "!" * 40
    engine.settings(fault="lossy")
    assert engine.text("a prompt") != right
    engine.settings(fault="error-500")
    assert engine.ask("/v1/completions", {"prompt": "x"})[0] == 500
    engine.settings(fault="hang")
    with pytest.raises(TimeoutError):
        engine.ask("/v1/completions", {"prompt": "x"}, timeout=0.3)
    assert engine.ask("/health")[0] == 200
    engine.settings()
    assert engine.text("a prompt") == right
    engine.settings(fault="worker-death", after_requests=99)
    assert engine.text("a prompt") == right
    engine.settings(fault="worker-death", death_exit_s=0)
    assert engine.ask("/v1/completions", {"prompt": "x"})[0] == 500
    assert engine.process.wait(timeout=10) == 0


@pytest.mark.process
def test_a_failed_start_is_exit_1_with_the_cause_above_the_symptom(start_engine: Start) -> None:
    engine = start_engine(ready=False, fault="oom-weights")
    code, log = engine.ended()
    assert code == 1
    assert log.index("CUDA out of memory") < log.index(
        "Engine core initialization failed. See root cause above"
    )


@pytest.mark.process
def test_a_taken_port_is_exit_1(start_engine: Start, steady: Running) -> None:
    port = steady.url.rpartition(":")[2]
    second = start_engine("--port", port, ready=False)
    code, log = second.ended()
    assert code == 1
    assert "OSError: [Errno 98] Address already in use" in log


SAYS = {
    "old-driver": "driver on your system is too old",
    "memory-taken": "Free memory on device cuda:0",
    "wrong-head": "must match the size of tensor b",
    "truncated-weights": "incomplete metadata, file not fully covered",
    "kv-too-small": "KV cache is needed",
    "nccl": "NCCL error",
    "oom-sampler": "warming up sampler with 256 dummy requests",
}


@pytest.mark.parametrize("fault", [f for f in START_FAULTS if f != "stuck-start"])
def test_each_start_fault_says_its_cause(fault: str, tmp_path: Path) -> None:
    values = {"model": model(tmp_path / "m"), "length": 512, "spec": SPEC}
    with pytest.raises(start.StartFailed, match=SAYS.get(fault, "CUDA out of memory. Tried to allocate")):
        start.run(Log("EngineCore"), values, (CONFIG, {}), Settings(fault=fault, start_s=0))


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (WEIGHTS[:-1], "not fully covered"),
        (WEIGHTS + b"x", "not fully covered"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not fully covered"),
        (b"", "not fully covered"),
        (None, "Cannot find any model weights"),
    ],
)
def test_broken_weights_end_a_start(weights: bytes | None, says: str, tmp_path: Path) -> None:
    values = {"model": model(tmp_path / "m", weights), "length": 512}
    with pytest.raises(start.StartFailed, match=says):
        start.run(Log("EngineCore"), values, (CONFIG, {}), Settings(start_s=0))


def test_a_head_of_another_width_ends_a_start(tmp_path: Path) -> None:
    spec = {"method": "eagle3", "model": model(tmp_path / "head"), "num_speculative_tokens": 3}
    values = {"model": model(tmp_path / "m"), "length": 512, "spec": spec}
    with pytest.raises(start.StartFailed, match=r"tensor a \(512\) must match the size of tensor b \(256\)"):
        start.run(Log("EngineCore"), values, (CONFIG, CONFIG | {"hidden_size": 512}), Settings(start_s=0))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensor_parallel": 3}, r"attention heads \(4\) must be divisible by tensor parallel size \(3\)"),
        ({"max_model_len": 4096}, "greater than the derived max_model_len"),
        ({"model": "/nowhere"}, "Invalid repository ID or local directory specified: '/nowhere'"),
        ({"spec": {"method": "eagle3", "model": "/nowhere"}}, "1 validation error for SpeculativeConfig"),
        ({"spec": {"method": "eagle3"}}, "without speculative model"),
        ({"spec": {"method": "eagle3", "model": "other"}}, "`num_speculative_tokens` was not provided"),
        ({"spec": SPEC | {"draft_tensor_parallel_size": 2}}, "cannot be other value than 1 or target"),
        ({"spec": SPEC | {"prompt_lookup_min": 9}}, "prompt_lookup_min=9 must be <= prompt_lookup_max=4"),
        ({"spec": SPEC | {"gone": 1}}, "Unexpected keyword argument: gone"),
        (
            {"spec": {"method": "draft_model", "model": "words", "num_speculative_tokens": 3}},
            "should have the same vocabulary size",
        ),
    ],
)
def test_refusals_before_any_process(
    changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "other")
    model(tmp_path / "words", vocab_size=896)
    values = {"model": model(tmp_path / "m")} | changes
    with pytest.raises(refuse.Refused, match=says):
        refuse.check(values, ["gone"])


@pytest.mark.parametrize("drafts", [1, 3, 5])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.7, 1.0])
def test_the_set_share_is_accepted(share: float, drafts: int) -> None:
    one = core.Core.__new__(core.Core)
    one.drafts, one.turn = drafts, 0.0
    now = Settings(acceptance=share)
    rights = [one.right(now) for _ in range(500)]
    assert sum(rights) / (500 * drafts) == pytest.approx(share, abs=0.005)
    assert max(rights) <= drafts


def test_one_stream_runs_at_the_set_speed() -> None:
    now = Settings(tokens_per_s=100)
    assert core.step_seconds(now, 1, 0) == pytest.approx(0.01)
    gain = [3 * core.step_seconds(now, n, 0) / core.step_seconds(now, n, 4) for n in (1, 16, 64)]
    assert gain == sorted(gain, reverse=True)
    assert gain[0] == pytest.approx(2.08, abs=0.05)


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    known = options_of(load_catalogue().release("vllm", VERSION))
    monkeypatch.setattr(options, "options", lambda: known)


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize(
    "words",
    [
        ["m", "--tensor-parallel-size=2", "--max_model_len", "4k"],
        ["m", "-tp", "2", "--speculative-config", '{"method":"ngram"}', "--max-model-len", "4000"],
        ["m", "-tp", "2", "--speculative-config.method", "ngram", "--max-model-len", "4000"],
    ],
)
def test_flags_are_read_as_the_real_parser_reads_them(words: list[str]) -> None:
    values = options.parse(words)
    assert (values["model"], values["tensor_parallel"], values["max_model_len"]) == ("m", 2, 4000)
    assert values.get("spec", {"method": "ngram"}) == {"method": "ngram"}


VERSIONS = ("0.6.2", "0.9.2", "0.19.1", "0.25.1", "0.33.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_has_its_own_flags_and_series(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = load_catalogue().release("vllm", version)
    known = options_of(release)
    monkeypatch.setattr(options, "options", lambda: known)
    about = {
        "name": "x",
        "engine": "vllm",
        "target": {"path": "/m"},
        "tensor_parallel": 2,
        "max_model_len": 512,
    }
    draft = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
    argv = render(Deployment.model_validate(about | {"draft": draft}), release, target_path="/m")
    values = options.parse(list(argv[len(release.program) :]))
    assert (values["model"], values["tensor_parallel"], values["port"]) == ("/m", 2, 8000)
    assert (values["spec"]["method"], values["spec"]["num_speculative_tokens"]) == ("ngram", 4)
    page = metrics.Metrics("m", 4, dict(release.metrics)).render()
    names = release.metrics.values()
    assert [n for n in names if f"\n{n}{{" not in page and f"\n{n}_count{{" not in page] == []
    assert ("kv_cache_usage_perc" in page) == (version != "0.6.2")


@pytest.mark.parametrize("name", [d.name for d in list_deployments() if "sglang" not in d.name])
@pytest.mark.usefixtures("flags")
def test_every_shipped_deployment_is_understood(name: str) -> None:
    release = load_catalogue().release("vllm", VERSION)
    want = load_deployment(find_deployment(name))
    argv = render(want, release, target_path="/t", draft_path="/d" if want.draft.model else None)
    values = options.parse(list(argv[len(release.program) :]))
    assert values["spec"]["method"] == want.draft.method


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize(
    "words", [["m", "--port", "x"], ["m", "--no-such"], [], ["m", "--speculative-config", "{"]]
)
def test_wrong_flags_are_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        options.parse(words)
    assert e.value.code == 2
    assert "vllm: error: " in capsys.readouterr().err


@pytest.mark.usefixtures("flags")
def test_unknown_flags_are_named_as_the_real_parser_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.parse(["m", "--speculative-model", "x"])
    assert capsys.readouterr().err.endswith("error: unrecognized arguments: --speculative-model x\n")


@pytest.mark.parametrize(
    "text", ['{"speed": 1}', '{"tokens_per_s": 0}', "{", "no-such-fault", '{"start_s": "x"}']
)
def test_wrong_settings_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Settings.parse(text)


def test_a_bare_word_is_a_fault() -> None:
    assert [Settings.parse(f"{f}\n").fault for f in (*START_FAULTS, *SERVING_FAULTS)] == [
        *START_FAULTS,
        *SERVING_FAULTS,
    ]


def test_wheels_are_the_same_each_time(
    wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = build_standin_wheelhouse(VERSION, output=tmp_path / "locks")
    assert {p.name: p.read_bytes() for p in again.dir.iterdir()} == {
        p.name: p.read_bytes() for p in wheelhouse.iterdir()
    }
    assert again.lock.packages == {"torch": "2.14.0+cu130", "vllm": "0.33.0+eyas.standin"}
    assert (again.lock.name, again.lock.target.accelerator) == ("vllm-0.33.0-standin", "cu130")
    assert again.lock.path is not None
    assert mismatches(read_lock(again.lock.path), again.dir) == []
