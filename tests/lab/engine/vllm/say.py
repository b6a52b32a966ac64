"""Log lines in the engine's form: ``(EngineCore pid=7) INFO 11-30 19:09:33 [core.py:337] text``."""

import os
import time

__all__ = ["Log"]


class Log:
    """The lines of one process. ``source`` is the file and line that the real line names."""

    def __init__(self, who: str) -> None:
        self.who = who

    def note(self, source: str, said: str) -> None:
        self._say("INFO", source, said)

    def caution(self, source: str, said: str) -> None:
        self._say("WARNING", source, said)

    def trouble(self, source: str, said: str) -> None:
        for line in said.splitlines():
            self._say("ERROR", source, line)

    def plain(self, said: str) -> None:
        """Lines without level, as uncaught errors and the HTTP server print them."""
        for line in said.splitlines() or [""]:
            self._write(f"({self.who} pid={os.getpid()}) {line}")

    def _say(self, level: str, source: str, said: str) -> None:
        self.plain(f"{level} {time.strftime('%m-%d %H:%M:%S')} [{source}] {said}")

    @staticmethod
    def _write(line: str) -> None:
        try:
            os.write(2, (line + "\n").encode())
        except OSError:
            pass  # a closed log must not end the engine
