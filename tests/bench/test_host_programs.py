"""The programs that run on the host, called as functions: the load against a server, the review's files."""

import ast
import asyncio
import contextlib
import importlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from provision.bench.programs import FILES

FOLDER = Path(__file__).resolve().parents[2] / "systemd"


@pytest.fixture(scope="module")
def programs() -> Iterator[SimpleNamespace]:
    names = ("bench", "bench_load", "review", "put_back", "proof", "endpoint", "served", "hold_lock")
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{n: importlib.import_module(n) for n in names})
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


# ---- the load


class Server:
    """Answers each request with ``lines`` as server-sent events, one chunk each."""

    def __init__(self, lines: list[str], status: str = "200 OK") -> None:
        self.lines, self.status = lines, status
        self.asked: list[dict[str, Any]] = []
        self.now = self.most = 0
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait(5)

    def _run(self, ready: threading.Event) -> None:
        async def serve() -> None:
            self.server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
            self.port = self.server.sockets[0].getsockname()[1]
            ready.set()
            self.stop = asyncio.Event()
            await self.stop.wait()
            self.server.close()
            left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self.loop.run_until_complete(serve())
        self.loop.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(5)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await self._stream(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await writer.wait_closed()  # or the loop ends first, and its socket stays open

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = 0
        while (line := await reader.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.asked.append(json.loads(await reader.readexactly(length)))
        self.now += 1
        self.most = max(self.most, self.now)
        writer.write(f"HTTP/1.1 {self.status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for number, text in enumerate(self.lines, 1):
            self.now -= number == len(self.lines)  # the client goes on as soon as it has the last one
            data = text.encode() + b"\n\n"
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")


def event(**words: Any) -> str:
    return "data: " + json.dumps(words, separators=(",", ":"))


def chunk(text: str) -> str:
    return event(choices=[{"index": 0, "text": text}])


USAGE = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 7})
DONE = "data: [DONE]"


def load(programs: SimpleNamespace, server: Server, asked: dict[str, Any], *, chat: bool = False) -> Any:
    release = SimpleNamespace(base=f"http://127.0.0.1:{server.port}", model="m", headers=dict)
    return asyncio.run(programs.bench_load.Load(release, {"max_tokens": 7, **asked}, chat).run())


def ended(
    programs: SimpleNamespace, server: Server, prompts: int = 4, concurrency: int = 2, **more: Any
) -> Any:
    try:
        asked = {"prompts": [f"p{n}" for n in range(prompts)], "concurrency": concurrency}
        return load(programs, server, asked, **more)
    finally:
        server.close()


def test_tokens_are_those_of_usage_and_every_prompt_is_answered(programs: SimpleNamespace) -> None:
    server = Server([chunk("two tokens"), chunk(""), chunk(" more"), USAGE, DONE])
    requests, wall = ended(programs, server)
    assert [(r["output_tokens"], r["prompt_tokens"], r["text"]) for r in requests] == [
        (7, 9, "two tokens more")
    ] * 4
    assert all(0 < r["ttft_s"] < r["total_s"] <= wall for r in requests)
    assert {a["prompt"] for a in server.asked} == {"p0", "p1", "p2", "p3"}
    first = server.asked[0]
    assert (first["temperature"], first["ignore_eos"], first["max_tokens"], first["seed"]) == (0, True, 7, 0)
    assert server.most <= 2


def test_requests_in_flight_never_fall_before_the_last_is_answered(programs: SimpleNamespace) -> None:
    server = Server([chunk("a")] * 20 + [USAGE, DONE])
    requests, _ = ended(programs, server, prompts=5, concurrency=4)
    assert len(requests) == 5
    assert server.most == 4
    assert len(server.asked) > 5, "what falls free is filled"


def test_the_chat_form_does_not_count_the_role_as_a_token(programs: SimpleNamespace) -> None:
    role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    said = event(choices=[{"index": 0, "delta": {"content": "hi"}}])
    server = Server([role, *[":ping"] * 20, said, USAGE, DONE])
    requests, _ = ended(programs, server, prompts=1, concurrency=1, chat=True)
    assert requests[0]["text"] == "hi"
    assert requests[0]["ttft_s"] > 0.015
    assert requests[0]["ttft_s"] == requests[0]["total_s"], "one token: its first is its last"
    assert server.asked[0]["messages"] == [{"role": "user", "content": "p0"}]


@pytest.mark.parametrize(
    ("lines", "status", "why"),
    [
        ([USAGE, DONE], "200 OK", "without a token or usage"),
        ([chunk("a"), DONE], "200 OK", "without a token or usage"),
        ([chunk("a"), event(error={"message": "EngineDeadError"})], "200 OK", "EngineDeadError"),
        (["data: {not json"], "200 OK", "broke off"),
        ([chunk("a")], "500 Internal Server Error", "500 Internal"),
    ],
)
def test_a_broken_answer_is_no_number(
    programs: SimpleNamespace, lines: list[str], status: str, why: str
) -> None:
    with pytest.raises(programs.bench_load.Failed, match=why):
        ended(programs, Server(lines, status))


def test_nobody_listens(programs: SimpleNamespace) -> None:
    server = Server([])
    server.close()
    with pytest.raises(programs.bench_load.Failed, match="broke off"):
        load(programs, server, {"prompts": ["a"], "concurrency": 1})


# ---- the review


TOLD = {
    "schema": 1,
    "deployment": "chat",
    "release": "0123456789abcdef",
    "time": 1000.5,
    "restarts": 2,
    "differences": {"argv": ["x"]},
    "busy": False,
    "error": "",
    "now": {"tokens_per_s": 98.5, "ttft_ms": 50.0, "acceptance_rate": 0.61, "acceptance_length": 2.8},
}


def test_metrics_are_what_prometheus_reads(programs: SimpleNamespace) -> None:
    text = programs.review.metrics(TOLD, {"tokens_per_s": 100.0})
    found = {s.name: s for f in text_string_to_metric_families(text) for s in f.samples}
    assert found["eyas_review_tokens_per_second"].value == 98.5
    assert found["eyas_review_ttft_seconds"].value == 0.05
    assert found["eyas_baseline_tokens_per_second"].value == 100
    assert found["eyas_review_up"].labels == {"deployment": "chat", "release": "0123456789abcdef"}
    assert "eyas_baseline_acceptance_ratio" not in found


def test_a_dead_endpoint_has_no_speed(programs: SimpleNamespace) -> None:
    told = {**TOLD, "now": None, "busy": None, "error": "connection refused", "restarts": None}
    text = programs.review.metrics(told, None)
    assert "eyas_review_up" in text
    assert "per_second{" not in text
    assert "gave no answer: connection refused" in programs.review.line(told, None)
    assert "98.5 tokens/s (100.0 when it was proven)" in programs.review.line(TOLD, {"tokens_per_s": 100.0})


def test_the_history_is_bounded_and_survives_a_cut_line(
    programs: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs.review, "KEPT", 5)
    path = tmp_path / "history.jsonl"
    path.write_text('{"n": 1}\n{"n": 2')
    programs.review.add(str(path), {"n": 3})
    assert path.read_text() == '{"n": 1}\n{"n": 3}\n'
    for n in range(programs.review.KEPT + 5):
        programs.review.add(str(path), {"n": n})
    assert len(path.read_text().splitlines()) == programs.review.KEPT
    assert os.listdir(tmp_path) == ["history.jsonl"]  # noqa: PTH208


def test_a_review_gives_way_to_whoever_works_here(programs: SimpleNamespace, tmp_path: Path) -> None:
    lock, owner = str(tmp_path / "flock"), str(tmp_path / "owner.json")
    held = programs.review.take(lock, owner)
    assert held is not None
    assert json.loads(Path(owner).read_text())["what"] == "review"
    assert programs.review.take(lock, owner) is None
    os.close(held)


# ---- the way back


def marker(tmp_path: Path) -> Path:
    path = tmp_path / "chat.json"
    (tmp_path / "r1").mkdir(exist_ok=True)
    told = {
        "deployment": "chat",
        "release": str(tmp_path / "r1"),
        "link": str(tmp_path / "link"),
        "unit": "u",
    }
    path.write_text(json.dumps(told))
    return path


@pytest.mark.parametrize(("code", "left"), [(0, False), (1, True)])
def test_a_cut_off_bench_is_put_back_or_tried_again(
    programs: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, left: bool
) -> None:
    back: ModuleType = programs.put_back
    monkeypatch.setattr(back, "served", lambda _: False)
    monkeypatch.setattr(back.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code))
    monkeypatch.setattr(back, "end_leftovers", lambda _: True)
    path, audit = marker(tmp_path), tmp_path / "audit.jsonl"
    words = [str(path), str(tmp_path / "flock"), str(tmp_path / "owner"), str(tmp_path / "work"), str(audit)]
    assert back.main(*words) == code
    assert path.exists() is left
    assert json.loads(audit.read_text())["release"] == "r1"
    assert not (tmp_path / "owner").exists()


def test_a_bench_that_ended_well_needs_no_way_back(programs: SimpleNamespace, tmp_path: Path) -> None:
    words = [str(tmp_path / n) for n in ("gone.json", "flock", "owner", "work", "audit")]
    assert programs.put_back.main(*words) == 0
    assert not (tmp_path / "audit").exists()


def test_what_a_program_imports_is_brought_along() -> None:
    """The folder on the host holds nothing else; pynvml lies beside them."""
    ours = {p.stem for p in FOLDER.glob("*.py")}
    for name in FILES:
        if name.endswith(".py"):
            tree = ast.parse((FOLDER / name).read_text())
            imports = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
            imports |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
            assert {f"{i}.py" for i in imports & ours} <= set(FILES), name
