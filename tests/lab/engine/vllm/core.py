"""The engine core and its workers: processes that can be stopped and killed like the real ones.

The server and the core talk in JSON lines over a socket pair; the core asks every worker before each step,
so that a stopped worker stops all tokens, and a dead one ends the core.
"""

import functools
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

from . import __version__
from .say import Log
from .settings import SERVING_FAULTS, Settings, Watched
from .start import StartFailed, run
from .texts import text
from .words import natural_length

__all__ = ["Lines", "fork", "step_seconds"]

#: A verification step costs more than a plain one, the more so the larger the batch: fitted to an H200
#: (7B, k=4, acceptance length 3.0: 2.08 times as fast with 1 request, 1.24 with 64).
_DRAFTING, _BATCH = 1.42, 160.0


def step_seconds(now: Settings, running: int, drafts: int) -> float:
    """One step for this many requests; alone and without speculation exactly 1 / tokens_per_s."""
    speed = now.tokens_per_s / (20 if now.fault == "slow" else 1)
    rows = running * (drafts + 1) - 1
    return ((_DRAFTING if drafts else 1.0) + rows / _BATCH) / speed


@functools.lru_cache(maxsize=64)
def _each(share: float, drafts: int) -> float:
    """The chance of each further token that makes ``share`` of all drafted ones right, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        mean = sum(middle**position for position in range(1, drafts + 1)) / drafts
        low, high = (middle, high) if mean < share else (low, middle)
    return high


class Lines:
    """JSON lines over a socket."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._rest = b""

    def send(self, message: dict[str, Any]) -> None:
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, wait: bool) -> list[dict[str, Any]] | None:
        """Whole messages that have come; None when the other end is gone."""
        if not wait and not select.select([self.link], [], [], 0)[0]:
            return []
        data = self.link.recv(65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def fork(
    values: dict[str, Any], configs: tuple[dict[str, Any], dict[str, Any]], who: str
) -> tuple[int, socket.socket]:
    """Start the core; returns its process id and the server's end of the link."""
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, mine
    mine.close()
    _become(who)
    os._exit(_core(values, configs, theirs))


def _become(title: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Path("/proc/self/comm").write_text(title[:15], encoding="ascii")


def _core(values: dict[str, Any], configs: tuple[dict[str, Any], dict[str, Any]], link: socket.socket) -> int:
    log, watched = Log("EngineCore"), Watched()
    spec = values.get("spec") or {}
    named = {"method": spec.get("method"), "model": spec.get("model")}
    shown = text("log", "spec", **named, number=spec.get("num_speculative_tokens")) if spec else None
    log.note("core.py:133", text("log", "config", version=__version__, model=values["model"], spec=shown))
    try:
        tokens = run(log, values, configs, watched.get())
    except StartFailed as e:
        log.trouble("core.py:1231", f"EngineCore failed to start.\n{e.traceback}")
        log.plain(f"Process EngineCore:\n{e.traceback}")
        return 1
    core = Core(log, watched, values, Lines(link), tokens)
    core.link.send({"ready": tokens})
    return core.loop()


class Core:
    def __init__(self, log: Log, watched: Watched, values: dict[str, Any], link: Lines, tokens: int) -> None:
        self.log, self.watched, self.link, self.kv_tokens = log, watched, link, tokens
        self.drafts = int((values.get("spec") or {}).get("num_speculative_tokens") or 0)
        self.seats = values.get("max_num_seqs") or 256
        self.waiting: deque[dict[str, Any]] = deque()
        self.running: list[dict[str, Any]] = []
        self.admitted = 0
        self.turn = 0.0
        self.at = time.monotonic()
        ranks = values.get("tensor_parallel", 1)
        self.workers = [_worker(rank, ranks, link.link) for rank in range(ranks)]

    def loop(self) -> int:
        while True:
            idle = not (self.waiting or self.running)
            if idle and not self.rest():
                self.log.trouble("multiproc_executor.py:288", text("log", "worker-died"))
                return 1
            messages = self.link.receive(wait=idle)
            if messages is None:
                return 0
            for message in messages:
                self.take(message)
            if (self.waiting or self.running) and not self.step():
                return 1

    def rest(self) -> bool:
        """Wait for the server to speak; False when a worker died meanwhile."""
        links = [link for _, link in self.workers]
        return not any(link in links for link in select.select([self.link.link, *links], [], [])[0])

    def take(self, message: dict[str, Any]) -> None:
        if message["op"] == "add":
            message["done"] = 0
            self.waiting.append(message)
            return
        self.waiting = deque(r for r in self.waiting if r["id"] != message["id"])
        self.running = [r for r in self.running if r["id"] != message["id"]]

    def step(self) -> bool:
        """Give every running request its next tokens; False when a worker is gone."""
        prompts = self.admit()
        now = self.settings()
        if now.fault == "core-death":
            os.kill(os.getpid(), signal.SIGKILL)
        if now.fault == "worker-death":
            os.kill(self.workers[0][0], signal.SIGKILL)
        self.wait(step_seconds(now, len(self.running), self.drafts) + prompts / now.prefill_tokens_per_s)
        if now.fault == "hang":
            self.report([], [])
            self.stuck()
        if not all(_asked(link) for _, link in self.workers):
            self.log.trouble("multiproc_executor.py:288", text("log", "worker-died"))
            return False
        out: list[list[Any]] = []
        accepted: list[int] = []
        for request in self.running:
            right = self.right(now) if request["done"] and self.drafts else None
            accepted += [right] if right is not None else []
            tokens = min(1 + (right or 0), request["until"] - request["done"])
            request["done"] += tokens
            out.append(
                [request["id"], tokens, request["end"] if request["done"] >= request["until"] else None]
            )
        self.running = [r for r in self.running if r["done"] < r["until"]]
        self.report(out, accepted)
        return True

    def admit(self) -> int:
        """Seat waiting requests; returns the prompt tokens that this step must read first."""
        prompts = 0
        while self.waiting and len(self.running) < self.seats:
            request = self.waiting.popleft()
            natural = request["max_tokens"] if request["ignore_eos"] else natural_length(request["prompt"])
            request["until"] = max(1, min(natural, request["max_tokens"]))
            request["end"] = "length" if request["until"] == request["max_tokens"] else "stop"
            self.running.append(request)
            self.admitted += 1
            prompts += request["prompt_tokens"]
        return prompts

    def settings(self) -> Settings:
        try:
            now = self.watched.get()
        except ValueError as e:
            self.log.caution("standin", f"settings ignored: {e}")
            return Settings()
        quiet = self.admitted <= now.after_requests or now.fault not in SERVING_FAULTS
        return Settings(**{**vars(now), "fault": ""}) if quiet else now

    def right(self, now: Settings) -> int:
        """How many drafted tokens are right this time: ever fewer by position, the set share over time.

        The golden ratio's multiples spread evenly, so that a few dozen steps already show the set share.
        """
        share = 0.02 if now.fault == "low-acceptance" else now.acceptance
        each = _each(share, self.drafts)
        self.turn = (self.turn + 0.6180339887498949) % 1.0
        return sum(self.turn < each**position for position in range(1, self.drafts + 1))

    def wait(self, seconds: float) -> None:
        """Keep to a schedule, so that the speed is the set one though sleeps are never exact."""
        now = time.monotonic()
        self.at = max(self.at, now - 0.25 if self.running and self.running[0]["done"] else now) + seconds
        if self.at > now:
            time.sleep(self.at - now)

    def stuck(self) -> None:
        """No token and no look at the link, as a core that waits inside a collective; ends with the fault."""
        while self.settings().fault == "hang":
            time.sleep(0.05)

    def report(self, out: list[list[Any]], accepted: list[int]) -> None:
        used = sum(r["prompt_tokens"] + r["done"] for r in self.running) / max(1, self.kv_tokens)
        load = {"running": len(self.running), "waiting": len(self.waiting), "kv": round(min(1.0, used), 6)}
        self.link.send({"out": out, "accepted": accepted, **load})


def _worker(rank: int, ranks: int, server: socket.socket) -> tuple[int, socket.socket]:
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, mine
    mine.close()
    server.close()
    _become("VLLM::Worker" if ranks == 1 else "VLLM::Worker_TP")
    return _work(rank, ranks, theirs)


def _work(rank: int, ranks: int, link: socket.socket) -> NoReturn:
    log = Log("Worker" if ranks == 1 else f"Worker_TP{rank}")
    while link.recv(1):
        link.sendall(b".")
    log.note("multiproc_executor.py:843", "Parent process exited, terminating worker queues")
    sys.stderr.flush()
    os._exit(0)


def _asked(link: socket.socket) -> bool:
    """Whether the worker took the step; waits for as long as it is stopped."""
    try:
        link.sendall(b".")
        return bool(link.recv(1))
    except OSError:
        return False
