"""`invoke bench-fleet`: makes the labs, measures, removes them whatever happens."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from inventory.errors import UsageError
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
    """Print a table for each part that was asked for, or one JSON document."""
    found: dict[str, Any] = {}
    if asked.hosts:
        with _lab("bench", asked.hosts, yes) as lab:
            found["small_job"] = fleet.small_job(
                lab, rounds=asked.rounds, others=asked.others, say=say_to_stderr
            )
    if asked.light:
        with _lab("bench-light", asked.light, yes, light=True) as lab:
            found["look"] = look.look_at_all(lab, say=say_to_stderr)
    if asked.spread:
        with _lab("bench-spread", asked.spread, yes, light=True) as lab:
            found["spread"] = spread.spread_weights(lab, asked.megabytes, asked.mbit, say=say_to_stderr)
    if as_json:
        print(json.dumps({"schema": 1, **found}))
        return 0
    tables = {"small_job": fleet.table, "look": look.table, "spread": spread.table}
    print("\n\n".join(tables[name](part) for name, part in found.items()))
    return 0


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
