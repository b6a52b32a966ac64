"""The host's bench program (systemd/bench.py) as an object: one request, one answer, over one session."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from checks.bench.cells import Round
from inventory.errors import ChangeFailed, HostUnreachable
from provision import layout
from provision.bench.programs import bring
from provision.shell import Session, Shell

__all__ = ["Loader", "open_loader"]

#: A round of long answers on a slow host; the program ends with its session, so nothing waits for ever.
_ROUND_S = 3600.0


@dataclass(frozen=True)
class Loader:
    session: Session
    host: str

    def ask(self, op: str, *, timeout: float = 300.0, **words: Any) -> dict[str, Any]:
        """Raises ChangeFailed when the endpoint failed, HostUnreachable when the link did."""
        try:
            self.session.send(json.dumps({"op": op, **words}).encode() + b"\n")
            line = self.session.readline(timeout=timeout)
        except (OSError, EOFError) as e:
            raise self._lost() from e
        if not line:
            raise self._lost()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as e:
            raise ChangeFailed(f"the load broke: {self._last(line)[:400]}", host=self.host) from e
        if "error" in answer:
            raise ChangeFailed(
                f"the endpoint did not bear the load: {answer['error']}",
                hint=f"invoke doctor --host {self.host}",
                host=self.host,
            )
        return answer

    def _last(self, line: str) -> str:
        """The last line of what it printed instead of an answer: of a traceback the one that tells."""
        while more := self.session.readline(timeout=5):
            line = more
        return line

    def _lost(self) -> HostUnreachable:
        return HostUnreachable(
            "the load on the host gave no answer: it ended, or the link is lost",
            hint="run the same command again",
            host=self.host,
        )

    def count(self, texts: Sequence[str]) -> list[int]:
        return [int(n) for n in self.ask("count", texts=list(texts))["counts"]]

    def round(
        self, prompts: Sequence[str], concurrency: int, max_tokens: int, *, texts: bool = False
    ) -> Round:
        words = {"prompts": list(prompts), "concurrency": concurrency, "max_tokens": max_tokens}
        return Round.read(self.ask("round", timeout=_ROUND_S, texts=texts, **words))


@contextlib.contextmanager
def open_loader(shell: Shell, deployment: str) -> Iterator[Loader]:
    """For the release that is served now. The host's lock must be held."""
    folder = bring(shell)
    shell_words = ("sh", "-c", 'exec "$@" 2>&1', "sh")
    argv = ("env", f"EYAS_CREDENTIALS={layout.credentials_dir(deployment)}", "python3", "-sEB")
    words = (f"{folder}/bench.py", layout.current_link(deployment), layout.WORK)
    with shell.session((*shell_words, *argv, *words)) as session:
        yield Loader(session, shell.host.name)
