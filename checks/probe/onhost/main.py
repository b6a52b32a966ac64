"""Runs every section in a child of its own, in parallel, each with a time limit; prints one document.

A section that hangs (a dead file server, a sick card) or crashes costs its own facts and no others.
"""

import json
import os
import select
import signal
import sys
import time

from . import cuda, driver, kernel_log, network, nvml, ourselves, ports, storage, system, units
from .base import Look, LookFailed, attempt, missing, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARKER = "@eyas-probe"
SCHEMA = 1
CAP = 4 << 20

#: name, collector, seconds, the facts that are lost with it
SECTIONS = (
    ("gpus", "cards", 30.0, ("gpus", "p2p", "topology", "driver.nvml_error", "driver.library_version")),
    ("units", units.collect, 5.0, ("eyas.units", "services", "driver.fabric_manager.active")),
    ("kernel_log", kernel_log.collect, 5.0, ("xid", "driver.kernel_lines")),
    ("driver", driver.collect, 5.0, ("driver.module_version", "driver.devices", "driver.packages")),
    ("ports", ports.collect, 5.0, ("ports",)),
    ("network", network.collect, 5.0, ("network",)),
    ("storage", storage.collect, 5.0, ("disks", "shm")),
    (
        "eyas",
        ourselves.collect,
        8.0,
        ("eyas.releases", "eyas.envs", "eyas.weights", "eyas.files", "eyas.user"),
    ),
    ("cuda", cuda.collect, 5.0, ("cuda",)),
    ("system", system.collect, 5.0, ("os", "cpu", "memory", "limits", "cgroup", "python", "tools")),
)


def main(params: "dict[str, Any]", pynvml: "Callable[[], Any]") -> None:
    began = time.monotonic()
    tree, spent = gather(params, pynvml)
    tree["probe"] = {
        "schema": SCHEMA,
        "ms": round((time.monotonic() - began) * 1000),
        "uid": os.geteuid(),
        "sections_ms": spent,
        "root": params.get("root") or "/",
    }
    body = fit(tree)
    out = sys.stdout.buffer
    out.write(f"\n{MARKER} {SCHEMA} {len(body)}\n".encode("ascii"))
    out.write(body)
    out.write(b"\n")
    out.flush()


def fit(tree: "dict[str, Any]", cap: int = CAP) -> bytes:
    """The document, its largest parts left out by name until it is below the cap."""
    while True:
        body = json.dumps(tree, ensure_ascii=True).encode("ascii")
        if len(body) <= cap:
            return body
        size, name = max((len(json.dumps(v)), k) for k, v in tree.items())
        tree[name] = missing(f"left out: {size} bytes are more than the probe sends")


def gather(params: "dict[str, Any]", pynvml: "Callable[[], Any]") -> "tuple[dict[str, Any], dict[str, int]]":
    """All sections' facts merged, and the milliseconds each took."""
    began = time.monotonic()
    scale = float(params.get("time_scale", 1.0))
    running = {}
    for name, collect, limit, lost in SECTIONS:
        ask = collect if callable(collect) else lambda look: cards(look, pynvml)
        deadline = time.monotonic() + limit * scale
        fd, pid = _start(ask, Look(params, deadline))
        running[fd] = _Section(name, pid, deadline, limit * scale, lost)
    tree: dict[str, Any] = {}
    spent = {}
    for section, facts in _finished(running):
        merge(tree, facts)
        spent[section.name] = round((time.monotonic() - began) * 1000)
    return tree, spent


class _Section:
    def __init__(self, name: str, pid: int, deadline: float, limit: float, lost: "tuple[str, ...]") -> None:
        self.name, self.pid, self.deadline, self.limit, self.lost = name, pid, deadline, limit, lost
        self.data = b""

    def facts(self) -> "dict[str, Any]":
        try:
            facts = json.loads(self.data.decode("ascii").rpartition("\n")[2])
        except ValueError:
            return self.gone(f"the probe's {self.name} part ended without an answer{self._last_note()}")
        why = facts.get("missing") if set(facts) == {"missing"} else None
        return self.gone(why) if why else facts

    def late(self) -> "dict[str, Any]":
        return self.gone(f"no answer within {self.limit:g} s{self._last_note()}")

    def _last_note(self) -> str:
        notes = self.data.decode("ascii", "replace").split("\n")[:-1]
        return " (asking " + notes[-1].strip('"') + ")" if notes else ""

    def gone(self, why: str) -> "dict[str, Any]":
        facts: dict[str, Any] = {}
        for path in self.lost:
            node: dict[str, Any] = dict(missing(why))
            for part in reversed(path.split(".")):
                node = {part: node}
            merge(facts, node)
        return facts


def _start(ask: "Callable[[Look], Any]", look: Look) -> "tuple[int, int]":
    """(read end, pid) of a child that answers with JSON. It holds none of our own streams open."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        signal.setitimer(signal.ITIMER_REAL, max(0.1, look.deadline - time.monotonic()) + 1)
        look.note = lambda doing: os.write(writer, (json.dumps(doing) + "\n").encode("ascii"))
        body = json.dumps(attempt(ask, look)).encode("ascii")
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(body)
    finally:
        os._exit(0)


def _finished(running: "dict[int, Any]") -> "Any":
    """Sections with their facts in the order they end; those past their deadline are killed."""
    while running:
        wait = max(0.0, min(s.deadline for s in running.values()) - time.monotonic())
        ready, _, _ = select.select(list(running), [], [], wait)
        for fd in ready:
            chunk = os.read(fd, 1 << 20)
            running[fd].data += chunk
            if not chunk:
                section = running.pop(fd)
                os.close(fd)
                _reap(section.pid)
                yield section, section.facts()
        for fd in [f for f, s in running.items() if s.deadline <= time.monotonic()]:
            section = running.pop(fd)
            os.close(fd)
            os.kill(section.pid, signal.SIGKILL)
            _reap(section.pid)
            yield section, section.late()


def _reap(pid: int) -> None:
    """Collect a child if it has ended; one stuck in the kernel is not waited for."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except OSError:
        return


def merge(tree: "dict[str, Any]", more: "dict[str, Any]") -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict) and "missing" not in tree[key]:
            merge(tree[key], value)
        else:
            tree[key] = value


def cards(look: Look, pynvml: "Callable[[], Any]") -> "dict[str, Any]":
    """NVML first; nvidia-smi only where NVML gives no answer, or where the operator asks for it."""
    if look.params.get("cards_from") == "nvidia-smi":
        facts = nvml.failed("not asked", None)
    else:
        facts = nvml.collect(look, pynvml)
    if facts["driver"].get("nvml_error") is None:
        return facts
    from . import smi  # noqa: PLC0415 - compiled where it is needed

    try:
        more = smi.collect(look)
    except LookFailed as e:
        words = smi.said(look) if look.which("nvidia-smi") else missing(reason(e))
        merge(facts, {"driver": {"nvidia_smi": words}})
        return facts
    merge(facts, more)
    return facts
