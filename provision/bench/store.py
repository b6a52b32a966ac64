"""Benches that were made from this machine, kept for reports and advice: one file each.

~/.local/state/eyas/bench/gpu01-chat-20261130T220000Z.json
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from checks.bench.model import BenchResult
from provision.localfile import replace_text

__all__ = ["benches", "benches_dir", "keep"]

_HINT = "XDG_STATE_HOME names the folder where eyas keeps what it did"


def benches_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "eyas" / "bench"


def keep(result: BenchResult) -> Path:
    stamp = re.sub(r"[^0-9TZ]", "", result.taken_at)
    name = re.sub(r"[^\w.-]", "_", f"{result.host}-{result.deployment}")
    path = benches_dir() / f"{name}-{stamp}.json"
    replace_text(path, result.to_json() + "\n", hint=_HINT)
    return path


def benches(folder: Path | None = None) -> Iterator[BenchResult]:
    """Every readable one, oldest first by name; a broken file or one of another schema is left out."""
    for path in sorted((folder or benches_dir()).glob("*.json")):
        try:
            yield BenchResult.from_json(path.read_bytes())
        except (OSError, ValueError):
            continue
