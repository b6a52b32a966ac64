"""What the simulation reckons with, from parameters.toml: measured by the benchmark, each with its source."""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

__all__ = ["Copy", "Held", "Look", "Parameters", "load"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str = Field(min_length=20)


class Look(_Table):
    """One look at one host: seconds, and milliseconds of one core at the operator's end."""

    start_s: PositiveFloat
    operator_cpu_ms: PositiveFloat
    host_s: PositiveFloat


class Held(_Table):
    """What a rollout keeps of each host: MiB, threads, open files."""

    mib: PositiveFloat
    threads: PositiveFloat
    files: PositiveFloat


class Copy(_Table):
    """One copy from host to host: seconds before the first byte, MB/s of the hash and of one ssh stream."""

    start_s: PositiveFloat
    verify_mb_s: PositiveFloat
    stream_mb_s: PositiveFloat


class Wait(_Table):
    round_trip_ms: PositiveFloat


class Parameters(_Table):
    source: str = ""
    look: Look
    held: Held
    copy_: Copy = Field(alias="copy")
    wait: Wait


def load() -> Parameters:
    path = Path(__file__).with_name("parameters.toml")
    return Parameters.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
