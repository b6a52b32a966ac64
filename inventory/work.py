"""A translation in the making: what a command said, what will be said instead, and the notes between."""

from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version
from pydantic import JsonValue

from inventory.catalogue import Engine, EngineRelease
from inventory.flags import Item
from inventory.roles import Roles
from inventory.snippet import Note, NoteKind

__all__ = ["Work"]


@dataclass
class Work:
    """A translation in the making. ``roles`` is what was said; ``want`` and ``draft`` what will be."""

    source: Engine
    release: EngineRelease
    notes: list[Note]
    source_release: EngineRelease | None = None
    roles: Roles = field(default_factory=dict)
    extra: dict[str, JsonValue] = field(default_factory=dict)
    seen: dict[str, Item] = field(default_factory=dict)
    retired: list[Item] = field(default_factory=list)
    unknown: list[Item] = field(default_factory=list)
    want: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    #: Roles whose change has its own note already.
    settled: set[str] = field(default_factory=set)

    @property
    def same_engine(self) -> bool:
        return self.source.engine == self.release.engine

    @property
    def version(self) -> Version:
        return Version(self.release.version)

    @property
    def here(self) -> str:
        return f"{self.release.engine} {self.release.version}"

    def note(self, kind: NoteKind, flag: str, text: str) -> None:
        self.notes.append(Note(kind, flag, text))

    def flag(self, role: str) -> str:
        """The flag as the command wrote it."""
        return self.seen[role].flag if role in self.seen else role

    def number(self, role: str) -> int | None:
        value = self.roles.get(role)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def applies(self, default: str) -> bool:
        """An n-gram minimum only means something where the command gave a maximum."""
        return default != "prompt_lookup_min" or "prompt_lookup_max" in self.roles

    def drop(self, role: str, kind: NoteKind, text: str) -> None:
        """Leave a role out and say why, if the command said it."""
        self.settled.add(role)
        if role in self.seen:
            self.note(kind, self.flag(role), text)
