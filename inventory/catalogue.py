"""The engine catalogue: what each vLLM and SGLang release is built from and how it spells each role.

Data lives in ``inventory/engines/*.toml``; this module only finds the rows that hold for a version. Code
elsewhere asks for roles and never compares versions itself.
"""

import difflib
import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from packaging.version import InvalidVersion, Version
from pydantic import JsonValue

from inventory.errors import UsageError
from inventory.model import Device, EngineName, Method
from inventory.rows import (
    Batch,
    Cpu,
    Default,
    DraftTp,
    Engine,
    Env,
    Flag,
    Known,
    MethodRow,
    Metric,
    Piece,
    Retired,
    RetiredEnv,
    RetiredKey,
    Row,
    Shorthand,
    Stack,
    Tree,
    ValueSpelling,
    WithDraft,
)

__all__ = [
    "Batch",
    "Catalogue",
    "Cpu",
    "Default",
    "DraftTp",
    "Engine",
    "EngineRelease",
    "Env",
    "Flag",
    "Known",
    "MethodRow",
    "Metric",
    "Piece",
    "Retired",
    "RetiredEnv",
    "RetiredKey",
    "Shorthand",
    "Stack",
    "Tree",
    "ValueSpelling",
    "WithDraft",
    "load_catalogue",
    "spec_of",
]

ENGINES = Path(__file__).resolve().parent / "engines"

RowT = TypeVar("RowT", bound=Row)


@dataclass(frozen=True)
class EngineRelease:
    """One version of one engine: every row that holds for it. ``note`` is set when it was not examined."""

    engine: EngineName
    version: str
    program: tuple[str, ...]
    always: tuple[str, ...]
    api_key_env: str | None
    api_key_config: str | None
    stack: Stack
    cpu: Cpu | None
    flags: Mapping[str, Flag]
    shorthands: tuple[Shorthand, ...]
    methods: Mapping[Method, MethodRow]
    with_draft: tuple[str, ...]
    draft_tp: tuple[DraftTp, ...]
    retired_keys: tuple[RetiredKey, ...]
    #: Flags of this release that later ones lack.
    retired: tuple[Retired, ...]
    defaults: Mapping[str, JsonValue]
    default_rows: tuple[Default, ...]
    values: tuple[ValueSpelling, ...]
    batch: tuple[Batch, ...]
    trees: tuple[Tree, ...]
    metrics: Mapping[str, str]
    env: tuple[Env, ...]
    pieces: tuple[Piece, ...]
    #: Other flags this version has.
    others: frozenset[str]
    note: str = ""

    @property
    def json_flag(self) -> str | None:
        """The JSON-valued flag of the speculative configuration, where this version has one."""
        return next((f.flag for f in self.flags.values() if f.key), None)

    def batch_defaults(self, *, memory_gib: float, card: str = "", device: Device = "cuda") -> Batch | None:
        """The scheduler sizes for a card of this memory (GiB), None where the catalogue has none."""
        for row in self.batch:
            shunned = row.not_card is not None and row.not_card in card.lower()
            if row.device == device and memory_gib >= row.min_gib and not shunned:
                return row
        return None

    def spells(self, role: str, given: str) -> bool:
        """Whether ``given`` is how this release writes the role (aliases count)."""
        flag = self.flags.get(role)
        if flag is None:
            return False
        if flag.key:
            return given.partition(".")[1:] == (".", flag.key) or self._short(role, given)
        negative = "--no-" + flag.flag.removeprefix("--")
        return given in {flag.flag, negative, *flag.aliases} or self._short(role, given)

    def _short(self, role: str, given: str) -> bool:
        return any(s.flag == given and s.role == role for s in self.shorthands)

    def knows(self, given: str) -> bool:
        """Whether this release reads a flag, or a key written ``--json-flag.key``."""
        if any(self.spells(role, given) or f.prefix == given for role, f in self.flags.items()):
            return True
        base, dot, key = given.partition(".")
        if dot:
            return base == self.json_flag and all(k.key != key for k in self.retired_keys)
        return any(r.flag == given for r in self.retired)

    def draft_tp_rule(self, method: Method) -> DraftTp | None:
        return next((r for r in self.draft_tp if method in r.methods), None)


@dataclass(frozen=True)
class Catalogue:
    """All engines. Immutable; `load_catalogue` reads it once."""

    engines: Mapping[EngineName, Engine]

    def engine(self, name: str) -> Engine:
        """Raises UsageError naming the engines there are."""
        for known, data in self.engines.items():
            if known == name:
                return data
        raise UsageError(f"unknown engine {name!r}", hint=f"engines: {', '.join(self.engines)}")

    def releases(self, engine: str) -> tuple[str, ...]:
        """Published versions in the catalogue, oldest first."""
        return self.engine(engine).published

    def release(self, engine: str, version: str) -> EngineRelease:
        """The rows that hold for ``version``.

        Raises UsageError for a version nobody published or one newer than the catalogue, with the nearest.
        """
        if (engine, version) not in self._made:
            self._made[engine, version] = self._make(engine, version)
        return self._made[engine, version]

    @functools.cached_property
    def _made(self) -> dict[tuple[str, str], EngineRelease]:
        """Each release is asked for many times, and gathered from some hundred rows once."""
        return {}

    def _make(self, engine: str, version: str) -> EngineRelease:
        data = self.engine(engine)
        parsed = self._parse(data, version)
        stack = next((s for s in data.stack if s.holds(parsed)), None)
        if str(parsed) not in data.published or stack is None:
            raise _unknown(data, version, parsed)
        return _release(data, parsed, stack)

    def versions_with(self, engine: str, holds: Iterable[Row]) -> str:
        """The published versions for which one of the rows holds, as "A to B, C to D" ("" if none)."""
        rows = tuple(holds)
        published = self.engine(engine).published
        return _runs(published, [any(r.holds(Version(v)) for r in rows) for v in published])

    @staticmethod
    def _parse(data: Engine, version: str) -> Version:
        try:
            return Version(Version(version).public)
        except InvalidVersion as e:
            raise UsageError(
                f"{version!r} is not a version of {data.engine}",
                hint=f"newest catalogued: {data.published[-1]}; or auto",
            ) from e


def spec_of(row: Row) -> str:
    return str(row.spec)


def _release(data: Engine, version: Version, stack: Stack) -> EngineRelease:
    def held(rows: Sequence[RowT]) -> tuple[RowT, ...]:
        return tuple(r for r in rows if r.holds(version))

    note = ""
    if str(version) != stack.examined:
        note = f"{data.engine} {version} was not examined itself; nearest examined {stack.examined}"
    return EngineRelease(
        engine=data.engine,
        version=str(version),
        program=data.program,
        always=data.always,
        api_key_env=data.api_key_env,
        api_key_config=data.api_key_config,
        stack=stack,
        cpu=next(iter(held(data.cpu)), None),
        flags={f.role: f for f in held(data.flag)},
        shorthands=held(data.shorthand),
        methods={m.name: m for m in held(data.method)},
        with_draft=tuple(w.flag for w in held(data.with_draft)),
        draft_tp=held(data.draft_tp),
        retired_keys=tuple(k for k in data.retired_key if not k.holds(version)),
        retired=held(data.retired),
        defaults={d.name: d.value for d in held(data.default)},
        default_rows=held(data.default),
        values=held(data.value),
        batch=held(data.batch),
        trees=held(data.tree),
        metrics={m.role: m.name for m in held(data.metric)},
        env=held(data.env),
        pieces=held(data.piece),
        others=frozenset(f for k in held(data.known) for f in k.flags),
        note=note,
    )


def _unknown(data: Engine, given: str, version: Version) -> UsageError:
    newest, oldest = Version(data.published[-1]), Version(data.published[0])
    if given in data.without_wheel:
        reason = f"{data.engine} {given} is on the index without a wheel for x86_64"
    elif version > newest:
        reason = f"{data.engine} {given} is newer than this catalogue, which ends at {newest}"
    elif version < oldest:
        reason = f"{data.engine} {given} is older than this catalogue, which begins at {oldest}"
    else:
        reason = f"{data.engine} {given} was never published"
    ordered = sorted(data.published, key=Version)
    below = [v for v in ordered if Version(v) < version][-2:]
    above = [v for v in ordered if Version(v) > version][:2]
    near = below + above or difflib.get_close_matches(given, ordered)
    return UsageError(reason, hint=f"nearest catalogued: {', '.join(near)}")


def _runs(names: Sequence[str], yes: Sequence[bool]) -> str:
    spans: list[list[str]] = []
    last = False
    for name, good in zip(names, yes, strict=True):
        if good and last:
            spans[-1].append(name)
        elif good:
            spans.append([name])
        last = good
    return ", ".join(s[0] if len(s) == 1 else f"{s[0]} to {s[-1]}" for s in spans)


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@functools.cache
def load_catalogue() -> Catalogue:
    """Read the engine files once. They are ours: a mistake in them is a bug and fails the tests."""
    engines = [Engine.model_validate(_read(ENGINES / f"{name}.toml")) for name in ("vllm", "sglang")]
    return Catalogue({e.engine: e for e in engines})
