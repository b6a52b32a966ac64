"""One command of an operator while it runs: what it has told, what happens meanwhile, its end."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Run", "statuses"]


def statuses(document: Mapping[str, Any]) -> dict[str, str]:
    return {h["host"]: h["status"] for h in document["hosts"]}


@dataclass
class Run:
    """One operator's command in a process of its own; ``log`` is its stderr."""

    process: subprocess.Popen[str]
    log: Path
    journals: Path
    seen: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = {f: f.stat().st_size for f in self.journals.glob("*.jsonl")}

    def journal(self) -> list[dict[str, Any]]:
        """Events written since this command began."""
        events = []
        for f in sorted(self.journals.glob("*.jsonl")):
            text = f.read_bytes()[self.seen.get(f, 0) :].decode()
            events += [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return events

    def meanwhile(self, when: Mapping[str, Callable[[], Any]], *, timeout: float = 400) -> "Run":
        """Do each thing once, side by side: at ``EVENT HOST`` in the journal or at words in the log."""
        end, left, threads = time.monotonic() + timeout, dict(when), []
        while self.process.poll() is None:
            self._in_time(end)
            told = {f"{e['event']} {e.get('host', '')}".strip() for e in self.journal()}
            text = self.log.read_text()
            for words in [w for w in left if w in told or f"{w}\n" in text or f" {w}" in text]:
                threads.append(threading.Thread(target=left.pop(words)))
                threads[-1].start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        assert not left, (left, self.log.read_text())
        return self

    def kill(self, point: Callable[[], bool], *, timeout: float = 300) -> bool:
        """SIGKILL once ``point`` is true; False when it ended by itself first."""
        end = time.monotonic() + timeout
        while self.process.poll() is None and not point():
            self._in_time(end)
            time.sleep(0.01)
        alive = self.process.poll() is None
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        return alive

    def wait(self, timeout: float = 400) -> tuple[int, dict[str, Any], str]:
        """Exit code, the JSON document, the log."""
        try:
            out, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self._in_time(0)
        return self.process.returncode, json.loads(out) if out.startswith("{") else {}, self.log.read_text()

    def _in_time(self, end: float) -> None:
        """Fail with the log, and leave no operator behind."""
        if time.monotonic() > end:
            self.process.kill()
            self.process.communicate()
            raise AssertionError(f"it does not end:\n{self.log.read_text()}")
