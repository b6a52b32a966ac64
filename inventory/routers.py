"""The catalogue of routers: data of ``routers.toml``, validated when it is read."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["FILE", "KINDS", "Catalogue", "Haproxy", "Kind", "PassedOver", "SglangRouter", "load_routers"]

FILE = Path(__file__).with_name("routers.toml")
Kind = Literal["haproxy", "sglang-router"]
KINDS: tuple[Kind, ...] = ("haproxy", "sglang-router")


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str


class Haproxy(_Row):
    """The distribution's package. ``oldest``: the first version that reads our configuration."""

    title: str
    package: str
    binary: str
    oldest: str
    strengths: str


class SglangRouter(_Row):
    """A wheel. ``lock``: its wheel lock's name, without the Python tag; ``policy``: as it spells it."""

    title: str
    version: str
    lock: str
    policy: str
    strengths: str
    glibc: str
    licence: str


class PassedOver(_Row):
    """A router that was looked at and not taken."""

    name: str
    version: str
    why: str
    glibc: str = ""
    licence: str = ""


class Catalogue(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    haproxy: Haproxy
    sglang_router: SglangRouter
    passed_over: tuple[PassedOver, ...]


@cache
def load_routers() -> Catalogue:
    words = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return Catalogue.model_validate({k.replace("-", "_"): v for k, v in words.items()}, strict=False)
