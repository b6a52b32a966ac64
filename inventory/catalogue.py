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
from typing import Annotated, Any, Literal, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from inventory.errors import UsageError
from inventory.model import Device, EngineName, Method

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

Spec = Annotated[
    SpecifierSet, BeforeValidator(lambda v: v if isinstance(v, SpecifierSet) else SpecifierSet(v))
]
ValueType = Literal["str", "int", "float", "json"]
Kind = Literal["value", "switch", "boolean", "off", "positional"]


class _Row(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()
    )
    spec: Spec
    source: str = ""

    def holds(self, version: Version) -> bool:
        return self.spec.contains(version, prereleases=True)


class Stack(_Row):
    """What the wheels are built from. ``driver_floor`` is the oldest driver whose CUDA runs them."""

    examined: str
    torch: str
    cuda: str
    compute_capability: tuple[str, str]
    driver_floor: str
    python: Spec
    glibc: str
    flashinfer: str | None = None
    flashinfer_cubin: str | None = None
    kernel: str | None = None
    note: str = ""


class Cpu(_Row):
    """The CPU build of a release: a package of its own."""

    package: str
    torch: str
    python: Spec
    glibc: str
    omit: tuple[str, ...] = ()
    #: Shared libraries of the system it loads, each with the Debian/Ubuntu package that has it.
    libraries: Mapping[str, str] = Field(default_factory=dict)
    note: str = ""


class Flag(_Row):
    """How a role is spelled. With ``key`` the value sits inside the JSON value of ``flag``."""

    role: str
    flag: str
    key: str | None = None
    aliases: tuple[str, ...] = ()
    #: What argparse takes as an unambiguous prefix of the flag; read, never written.
    prefix: str | None = None
    kind: Kind = "value"
    type: ValueType = "str"

    @property
    def where(self) -> str:
        """How to point at it in a sentence."""
        return f"the key {self.key} of {self.flag}" if self.key else self.flag


class Shorthand(_Row):
    """A second spelling that is read and never written: of a role, or of the JSON flag itself."""

    flag: str
    role: str | None = None
    type: ValueType = "str"
    json_flag: bool = Field(default=False, alias="json")


class MethodRow(_Row):
    """A speculation method: its name there, or what stands in for the model (``[ngram]``)."""

    name: Method
    value: str | None = None
    model_value: str | None = None


class WithDraft(_Row):
    """A switch every command with a draft must carry."""

    flag: str


class DraftTp(_Row):
    """What the draft's tensor parallel size may be."""

    methods: tuple[Method, ...]
    rule: Literal["one", "equal", "one-or-equal", "ignored"]
    text: str


class Retired(_Row):
    """A flag that only some versions have; ``spec`` says which. ``text`` says what to do without it."""

    flag: str
    takes_value: bool | Literal["optional"] = False
    kind: Literal["removed", "renamed", "no-effect"]
    text: str
    becomes: tuple[str, ...] = ()
    #: The value moves to this key of the speculative configuration.
    extra_key: str | None = None
    extra_type: ValueType = "str"


class RetiredKey(_Row):
    """A key of the speculative configuration that only some versions accept."""

    key: str
    kind: Literal["removed", "renamed", "no-effect"]
    text: str
    becomes: str | None = None


class Known(_Row):
    """Flags that no role stands for and that a version has."""

    flags: tuple[str, ...]


class RetiredEnv(_Row):
    """An environment variable that only some versions read."""

    name: str
    text: str
    becomes: tuple[str, ...] = ()


class Default(_Row):
    """A value the engine takes when nothing is said. With ``role``: said by that role otherwise."""

    name: str
    value: JsonValue
    role: str | None = None
    method: Method | None = None


class ValueSpelling(_Row):
    """A role's value as the other engine writes it, and this one's word for it."""

    role: str
    given: str
    becomes: str


class Batch(_Row):
    """The scheduler's sizes when the command names none, for cards with at least ``min_gib`` GiB."""

    min_gib: float
    not_card: str | None = None
    device: Device = "cuda"
    max_num_seqs: int
    max_num_batched_tokens: int
    note: str = ""


class Tree(_Row):
    """SGLang's own steps, top-k and draft tokens for a family of targets."""

    methods: tuple[Method, ...]
    family: str | None = None
    steps: int
    topk: int
    draft_tokens: int


class Metric(_Row):
    role: str
    name: str


class Env(_Row):
    """A variable the service runs with. ``{ranks}`` in the value is "0|1|..." up to the world size."""

    name: str
    value: str
    device: Device | None = None
    min_world: int = 1


class Piece(_Row):
    """Something beside the wheel without which a feature is off or slow."""

    name: str
    how: Literal["command", "wheel"]
    argv: tuple[str, ...]
    why: str
    instead: str = ""
    device: Device | None = None
    method: Method | None = None


class Engine(BaseModel):
    """One engine's whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    engine: EngineName
    package: str
    program: tuple[str, ...]
    program_forms: tuple[tuple[str, ...], ...]
    images: tuple[str, ...] = ()
    api_key_env: str | None = None
    api_key_config: str | None = None
    always: tuple[str, ...] = ()
    source: str
    published: tuple[str, ...]
    without_wheel: tuple[str, ...] = ()
    stack: tuple[Stack, ...]
    cpu: tuple[Cpu, ...] = ()
    flag: tuple[Flag, ...]
    shorthand: tuple[Shorthand, ...] = ()
    method: tuple[MethodRow, ...]
    with_draft: tuple[WithDraft, ...] = ()
    draft_tp: tuple[DraftTp, ...] = ()
    retired: tuple[Retired, ...] = ()
    retired_key: tuple[RetiredKey, ...] = ()
    retired_env: tuple[RetiredEnv, ...] = ()
    value: tuple[ValueSpelling, ...] = ()
    default: tuple[Default, ...] = ()
    batch: tuple[Batch, ...] = ()
    tree: tuple[Tree, ...] = ()
    metric: tuple[Metric, ...] = ()
    env: tuple[Env, ...] = ()
    piece: tuple[Piece, ...] = ()
    known: tuple[Known, ...] = ()


RowT = TypeVar("RowT", bound=_Row)


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
        data = self.engine(engine)
        parsed = self._parse(data, version)
        stack = next((s for s in data.stack if s.holds(parsed)), None)
        if str(parsed) not in data.published or stack is None:
            raise _unknown(data, version, parsed)
        return _release(data, parsed, stack)

    def versions_with(self, engine: str, holds: Iterable[_Row]) -> str:
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


def spec_of(row: _Row) -> str:
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
