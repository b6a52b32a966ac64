"""Read the doctor's inputs from files and standard input. Every refusal names the file and the way on."""

import atexit
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from checks.doctor.model import Inputs
from checks.doctor.reader import BLOCK
from inventory.errors import UsageError

__all__ = ["Blocks", "offline", "read_facts", "spooled"]


class Blocks:
    """A log's blocks, read anew by each iteration and never held whole. "-" is standard input, once."""

    def __init__(self, path: str) -> None:
        self.path = path
        if path != "-":
            self._open().close()

    def __iter__(self) -> Iterator[bytes]:
        if self.path == "-":
            yield from iter(lambda: sys.stdin.buffer.read(BLOCK), b"")
            return
        with self._open() as file:
            try:
                while block := file.read(BLOCK):
                    yield block
            except OSError as e:
                raise UsageError(f"cannot read {self.path}: {e.strerror}", hint="give a readable log") from e

    def _open(self) -> BinaryIO:
        try:
            return Path(self.path).open("rb")
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or e
            raise UsageError(f"cannot read {self.path}: {why}", hint="give a log file, or - for stdin") from e


def spooled(blocks: Iterable[bytes]) -> Blocks:
    """Standard input kept in an unnamed-after-exit temporary file, so that it can be read twice."""
    with tempfile.NamedTemporaryFile(prefix="doctor-", delete=False) as file:
        for block in blocks:
            file.write(block)
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return Blocks(file.name)


def read_text(path: str) -> str:
    """A small text file (facts, unit, metrics), at most 64 MiB."""
    try:
        with Path(path).open("rb") as file:
            data = file.read((64 << 20) + 1)
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}", hint="check the path") from e
    if len(data) > 64 << 20:
        raise UsageError(
            f"{path} is larger than 64 MiB", hint="this option wants a small file; a log goes to --log"
        )
    return data.decode("utf-8", "replace")


def read_facts(path: str) -> Mapping[str, Any]:
    """A saved probe or a flat JSON object; a case file's ``facts`` object is taken out of it."""
    try:
        tree = json.loads(read_text(path))
    except (ValueError, RecursionError) as e:
        raise UsageError(
            f"{path} is not JSON: {e}", hint='facts look like {"gpu": "L40S", "count": 8}'
        ) from e
    if not isinstance(tree, dict):
        raise UsageError(f"{path} holds no JSON object", hint='facts look like {"gpu": "L40S", "count": 8}')
    inner = tree.get("facts")
    return inner if isinstance(inner, dict) else tree


def offline(
    *, log: str = "", facts: str = "", unit: str = "", metrics: str = "", engine: str = "", version: str = ""
) -> Inputs:
    """The inputs of ``invoke doctor --log ... --facts ...``; any may be missing, not all of them."""
    if not any((log, facts, unit, metrics)):
        raise UsageError("nothing to look at", hint="give --host PATTERN, or --log FILE (or - for stdin)")
    if engine not in {"", "vllm", "sglang"}:
        raise UsageError(f"unknown engine {engine}", hint="--engine vllm or --engine sglang")
    named = {"log": log if log != "-" else "stdin", "facts": facts, "unit": unit, "metrics": metrics}
    return Inputs(
        log=Blocks(log) if log else None,
        facts=read_facts(facts) if facts else None,
        unit=read_text(unit) if unit else None,
        metrics=read_text(metrics) if metrics else None,
        engine=engine,
        engine_version=version,
        sources={k: Path(v).name for k, v in named.items() if v},
    )
