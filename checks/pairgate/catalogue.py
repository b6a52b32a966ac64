"""What an engine version does with a draft: the rows of registry.toml that apply to it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from inventory.errors import UsageError

__all__ = ["ROLES", "Roles", "layout", "registry", "roles_of"]

ROLES = (
    "methods", "detection", "head_classes", "speculators", "eagle3_targets", "head_input", "positions",
    "draft_tp", "pipeline", "vocabulary", "quantised",
)  # fmt: skip


@dataclass(frozen=True)
class Roles:
    """One engine version's rows, by role. ``newer`` is set when the version is past the catalogue."""

    engine: str
    version: str
    rows: Mapping[str, Mapping[str, Any]]
    newer: bool = False

    def __getitem__(self, role: str) -> Mapping[str, Any]:
        return self.rows[role]

    @property
    def name(self) -> str:
        return f"{'vLLM' if self.engine == 'vllm' else 'SGLang'} {self.version}"


@cache
def registry() -> Mapping[str, Any]:
    path = Path(__file__).with_name("registry.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def layout(method: str) -> Mapping[str, Any] | None:
    """Names of a head's tensors, None for a method that has no such layout."""
    found: Mapping[str, Any] | None = registry()["layout"].get(method)
    return found


@cache
def roles_of(engine: str, version: str | None) -> Roles:
    """The rows for this version; None or "auto" is the newest catalogued.

    Raises UsageError for a version that is none, or older than the catalogue.
    """
    data = registry()
    about = data["engines"].get(engine)
    if about is None:
        raise UsageError(f"engine {engine!r} is not known", hint=f"one of: {', '.join(data['engines'])}")
    wanted = about["newest"] if version in {None, "auto"} else str(version)
    try:
        parsed = Version(wanted)
    except InvalidVersion as e:
        raise UsageError(
            f"{wanted!r} is not a version of {engine}", hint=f"write it like {about['newest']}"
        ) from e
    if parsed not in SpecifierSet(about["known"], prereleases=True):
        raise UsageError(
            f"{engine} {wanted} is older than what is catalogued ({about['known']})",
            hint=f"name one of: {', '.join(about['examined'])}",
        )
    rows = {role: _row(data[engine][role], parsed) for role in ROLES}
    return Roles(engine, wanted, rows, newer=parsed > Version(about["newest"]))


def _row(rows: list[dict[str, Any]], version: Version) -> dict[str, Any]:
    """The row whose range holds the version. A test proves that there is exactly one."""
    return next(r for r in rows if SpecifierSet(r["versions"], prereleases=True).contains(version))
