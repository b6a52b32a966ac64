"""`invoke bench-fleet`: makes the labs, measures, removes them whatever happens."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from inventory.errors import ChangeFailed, EyasError, UsageError
from tests.lab.hosts import Lab, say_to_stderr
from tests.lab.scale import fleet, look, spread

__all__ = ["Asked", "bench"]

MOST = 1000


@dataclass(frozen=True)
class Asked:
    hosts: int
    rounds: int
    others: bool
    light: int
    spread: int
    megabytes: int
    mbit: int

    def __post_init__(self) -> None:
        least = {"hosts": 0, "rounds": 1, "light": 0, "spread": 0, "megabytes": 1, "mbit": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if not bound <= value <= MOST:
                raise UsageError(f"--{name} {value} is not between {bound} and {MOST}", hint=f"--{name} 20")
        if not self.hosts and not self.light and not self.spread:
            raise UsageError("nothing to measure", hint="--hosts 20, --light 100 or --spread 20")


def bench(asked: Asked, *, yes: bool, as_json: bool) -> int:
    """Print a table for each part that was asked for, or one JSON document.

    A part that fails is told of and hides no other. Exit 5 then.
    """
    parts = [
        name
        for name, wanted in (("small_job", asked.hosts), ("look", asked.light), ("spread", asked.spread))
        if wanted
    ]
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in parts:
        try:
            found[name] = _PARTS[name](asked, yes)
        except (EyasError, OSError, RuntimeError) as e:
            failed[name] = str(e)
            say_to_stderr(f"{name}: {e}")
    if as_json:
        print(json.dumps({"schema": 1, **found, "failed": failed}))
    else:
        tables = {"small_job": fleet.table, "look": look.table, "spread": spread.table}
        print(
            "\n\n".join(
                [*(tables[n](p) for n, p in found.items()), *(f"{n}: failed: {w}" for n, w in failed.items())]
            )
        )
    return ChangeFailed.exit_code if failed else 0


def _small_job(asked: Asked, yes: bool) -> dict[str, Any]:
    with _lab("bench", asked.hosts, yes) as lab:
        return fleet.small_job(lab, rounds=asked.rounds, others=asked.others, say=say_to_stderr)


def _look(asked: Asked, yes: bool) -> dict[str, Any]:
    with _lab("bench-light", asked.light, yes, light=True) as lab:
        return look.look_at_all(lab, say=say_to_stderr)


def _spread(asked: Asked, yes: bool) -> dict[str, Any]:
    with _lab("bench-spread", asked.spread, yes) as lab:
        return spread.spread_weights(lab, asked.megabytes, asked.mbit, say=say_to_stderr)


_PARTS: dict[str, Callable[[Asked, bool], dict[str, Any]]] = {
    "small_job": _small_job,
    "look": _look,
    "spread": _spread,
}


@contextlib.contextmanager
def _lab(name: str, count: int, yes: bool, **spec: Any) -> Iterator[Lab]:
    names = [f"gpu{n:03}" for n in range(1, count + 1)]
    lab = None
    try:
        lab = Lab.up(names, name=name, yes=yes, **spec)
        say_to_stderr(f"{count} lab hosts are up")
        yield lab
    finally:
        with contextlib.suppress(UsageError):  # it never came to be
            (lab or Lab.find(name)).down()
