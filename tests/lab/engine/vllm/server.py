"""The HTTP side: the endpoints that clients, probes and Prometheus use, over one link to the engine core."""

import itertools
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .answers import Answers
from .core import Lines
from .metrics import Metrics
from .options import options
from .say import Log
from .settings import Watched
from .texts import text

__all__ = ["Engine", "serve"]


class Engine:
    """The server's view of the engine core: requests out, tokens back, dead or alive."""

    def __init__(self, link: socket.socket, values: dict[str, Any], model: str) -> None:
        spec = values.get("spec") or {}
        self.link, self.model, self.length = Lines(link), model, values["length"]
        self.root = values["model"]
        self.keys = [k for k in (values.get("api_key"), os.environ.get("VLLM_API_KEY")) if k]
        self.speculates = bool(spec)
        self.metrics = Metrics(model, int(spec.get("num_speculative_tokens") or 0), options()["metrics"])
        self.watched = Watched()
        self.dead = threading.Event()
        self._queues: dict[int, queue.SimpleQueue[tuple[int, str | None]]] = {}
        self._ids = itertools.count()
        self._lock = threading.Lock()

    def add(self, prompt: str, tokens: int, most: int, *, ignore_eos: bool) -> "Generation":
        with self._lock:
            number = next(self._ids)
            box: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
            self._queues[number] = box
            request = {"op": "add", "id": number, "prompt": prompt, "prompt_tokens": tokens}
            self._send({**request, "max_tokens": most, "ignore_eos": ignore_eos})
        return Generation(self, number, box, tokens)

    def abort(self, number: int) -> None:
        with self._lock:
            if self._queues.pop(number, None) is not None:
                self._send({"op": "abort", "id": number})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self.link.send(message)
        except OSError:
            self.dead.set()

    def listen(self) -> None:
        """Hand out what the core says until it is gone; then every waiting request hears of it."""
        try:
            while (messages := self.link.receive(wait=True)) is not None:
                for message in messages:
                    self._hear(message)
        except OSError:
            pass
        self.dead.set()
        with self._lock:
            for box in self._queues.values():
                box.put((0, "dead"))

    def _hear(self, message: dict[str, Any]) -> None:
        metrics = self.metrics
        with metrics.lock:
            metrics.drafted_step(message["accepted"])
            metrics.counters["generation_tokens"] += sum(n for _, n, _ in message["out"])
            metrics.gauges["num_requests_running"] = message["running"]
            metrics.gauges["num_requests_waiting"] = message["waiting"]
            metrics.gauges["kv_cache_usage_perc"] = message["kv"]
        with self._lock:
            for number, tokens, end in message["out"]:
                if box := self._queues.get(number):
                    box.put((tokens, end))
                if end:
                    self._queues.pop(number, None)


class Generation:
    """One request's tokens as they come: iterate to get (how many, why it ended or None)."""

    def __init__(
        self, engine: Engine, number: int, box: "queue.SimpleQueue[tuple[int, str | None]]", prompt: int
    ) -> None:
        self.engine, self.number, self.box, self.prompt = engine, number, box, prompt
        self.began = self.last = time.monotonic()
        self.tokens = 0

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> tuple[int, str | None]:
        tokens, end = self.box.get()
        now = time.monotonic()
        with self.engine.metrics.lock:
            self._note(tokens, end, now)
        self.last = now
        return tokens, end

    def _note(self, tokens: int, end: str | None, now: float) -> None:
        metrics, seen = self.engine.metrics, self.engine.metrics.histograms
        if not self.tokens and tokens:
            metrics.counters["prompt_tokens"] += self.prompt
            seen["time_to_first_token_seconds"].observe(now - self.began)
        elif tokens:
            seen["inter_token_latency_seconds"].observe((now - self.last) / tokens, tokens)
        self.tokens += tokens
        if end:
            metrics.finished[end if end in metrics.finished else "error"] += 1
            seen["e2e_request_latency_seconds"].observe(now - self.began)
            seen["request_prompt_tokens"].observe(self.prompt)
            seen["request_generation_tokens"].observe(self.tokens)


class _Handler(Answers, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.engine = self.server.engine

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def log_message(self, *_: Any) -> None:
        """Requests are logged as the real server does, in ``log_request``."""

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        phrase = self.responses.get(int(code), ("",))[0]
        host, port = self.client_address[:2]
        line = f'"{self.command} {self.path} HTTP/1.1" {code} {phrase}'
        self.server.log.plain(f"INFO:     {host}:{port} - {line}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, listener: socket.socket, engine: Engine, log: Log) -> None:
        self.engine, self.log = engine, log
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth a line; anything else is a fault of the stand-in."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            self.log.plain(traceback.format_exc())


def serve(listener: socket.socket, engine: Engine, log: Log, core: int) -> int:
    """Serve until a signal (0) or until the engine is dead: 503 for a while, then exit 0, as the real one."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    server = _Server(listener, engine, log)
    threading.Thread(target=engine.listen, daemon=True).start()
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    for route in ("/version", "/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions"):
        log.note("launcher.py:195", f"Route: {route}")
    log.plain(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.")
    log.plain("INFO:     Application startup complete.")
    _watch(engine, log, ended)
    log.note("launcher.py:254", "[shutdown] API server: shutdown triggered")
    for number in (signal.SIGTERM, signal.SIGKILL):
        _kill(core, number)
    log.plain("INFO:     Shutting down\nINFO:     Waiting for application shutdown.")
    log.plain(f"INFO:     Application shutdown complete.\nINFO:     Finished server process [{os.getpid()}]")
    return 0


def _watch(engine: Engine, log: Log, ended: threading.Event) -> None:
    """Return when it is time to stop. Every 10 s with work done: the line that operators know."""
    before, at = _totals(engine), time.monotonic()
    while not ended.wait(0.1):
        if engine.dead.is_set():
            log.caution(
                "core_client.py:817", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
            )
            log.trouble("async_llm.py:906", text("log", "engine-dead"))
            ended.wait(engine.watched.get().death_exit_s)
            return
        if time.monotonic() - at >= 10:
            now = _totals(engine)
            if now != before:
                _status(
                    engine, log, [n - b for n, b in zip(now, before, strict=False)], time.monotonic() - at
                )
            before, at = now, time.monotonic()


def _totals(engine: Engine) -> list[int]:
    metrics = engine.metrics
    with metrics.lock:
        sums = [metrics.counters["prompt_tokens"], metrics.counters["generation_tokens"]]
        return [*sums, metrics.drafts, metrics.drafted, sum(metrics.positions)]


def _status(engine: Engine, log: Log, delta: list[int], seconds: float) -> None:
    prompts, tokens, drafts, drafted, accepted = delta
    gauges = engine.metrics.gauges
    load = {"running": gauges["num_requests_running"], "waiting": gauges["num_requests_waiting"]}
    load |= {
        "prompts": prompts / seconds,
        "tokens": tokens / seconds,
        "kv": 100 * gauges["kv_cache_usage_perc"],
    }
    log.note("loggers.py:335", text("log", "load", **load))
    if drafts:
        rates = {"accepted_rate": accepted / seconds, "drafted_rate": drafted / seconds}
        shares = {"length": 1 + accepted / drafts, "rate": 100 * accepted / drafted}
        said = text("log", "speculation", accepted=accepted, drafted=drafted, **rates, **shares)
        log.note("metrics.py:120", said)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
        time.sleep(0.05)
        os.waitpid(pid, os.WNOHANG)
    except OSError:
        pass
