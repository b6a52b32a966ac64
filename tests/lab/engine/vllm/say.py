"""Log lines in the engine's form: ``(EngineCore pid=7) INFO 11-30 19:09:33 [core.py:337] text``."""

import os
import time

__all__ = ["Log"]


class Log:
    """The lines of one process. ``source`` is the file and line that the real line names."""

    def __init__(self, who: str) -> None:
        self.who = who

    def info(self, source: str, text: str) -> None:
        self._say("INFO", source, text)

    def warning(self, source: str, text: str) -> None:
        self._say("WARNING", source, text)

    def error(self, source: str, text: str) -> None:
        for line in text.splitlines():
            self._say("ERROR", source, line)

    def plain(self, text: str) -> None:
        """A line without level, as uncaught errors and the HTTP server print them."""
        for line in text.splitlines() or [""]:
            self._write("(%s pid=%d) %s" % (self.who, os.getpid(), line))

    def _say(self, level: str, source: str, text: str) -> None:
        when = time.strftime("%m-%d %H:%M:%S")
        self.plain("%s %s [%s] %s" % (level, when, source, text))

    @staticmethod
    def _write(line: str) -> None:
        try:
            os.write(2, (line + "\n").encode())
        except OSError:
            pass  # a closed log must not end the engine
