"""The engine's own words, from texts.toml."""

import functools
import tomllib
from importlib import resources
from typing import Any

__all__ = ["text"]


@functools.cache
def _all() -> dict[str, dict[str, str]]:
    data = tomllib.loads((resources.files(__package__ or "vllm") / "texts.toml").read_text(encoding="utf-8"))
    return {name: table for name, table in data.items() if isinstance(table, dict)}


def text(kind: str, name: str, /, **values: Any) -> str:
    """One text, its names filled in. KeyError when there is none."""
    return _all()[kind][name].format(**values)
