"""The rows of the engine catalogue, as the TOML files hold them."""

from collections.abc import Mapping
from typing import Annotated, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from inventory.model import Device, EngineName, Method

__all__ = [
    "Batch",
    "Cpu",
    "Default",
    "DraftTp",
    "Engine",
    "Env",
    "Flag",
    "Kind",
    "Known",
    "MethodRow",
    "Metric",
    "Piece",
    "Retired",
    "RetiredEnv",
    "RetiredKey",
    "Row",
    "Shorthand",
    "Spec",
    "Stack",
    "Tree",
    "ValueSpelling",
    "ValueType",
    "WithDraft",
]

Spec = Annotated[
    SpecifierSet, BeforeValidator(lambda v: v if isinstance(v, SpecifierSet) else SpecifierSet(v))
]
ValueType = Literal["str", "int", "float", "json"]
Kind = Literal["value", "switch", "boolean", "off", "positional"]


class Row(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()
    )
    spec: Spec
    source: str = ""

    def holds(self, version: Version) -> bool:
        return self.spec.contains(version, prereleases=True)


class Stack(Row):
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


class Cpu(Row):
    """The CPU build of a release: a package of its own."""

    package: str
    torch: str
    python: Spec
    glibc: str
    omit: tuple[str, ...] = ()
    #: Shared libraries of the system it loads, each with the Debian/Ubuntu package that has it.
    libraries: Mapping[str, str] = Field(default_factory=dict)
    note: str = ""


class Flag(Row):
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


class Shorthand(Row):
    """A second spelling that is read and never written: of a role, or of the JSON flag itself."""

    flag: str
    role: str | None = None
    type: ValueType = "str"
    json_flag: bool = Field(default=False, alias="json")


class MethodRow(Row):
    """A speculation method: its name there, or what stands in for the model (``[ngram]``)."""

    name: Method
    value: str | None = None
    model_value: str | None = None


class WithDraft(Row):
    """A switch every command with a draft must carry."""

    flag: str


class DraftTp(Row):
    """What the draft's tensor parallel size may be."""

    methods: tuple[Method, ...]
    rule: Literal["one", "equal", "one-or-equal", "ignored"]
    text: str


class Retired(Row):
    """A flag that only some versions have; ``spec`` says which. ``text`` says what to do without it."""

    flag: str
    takes_value: bool | Literal["optional"] = False
    kind: Literal["removed", "renamed", "no-effect"]
    text: str
    becomes: tuple[str, ...] = ()
    #: The value moves to this key of the speculative configuration.
    extra_key: str | None = None
    extra_type: ValueType = "str"


class RetiredKey(Row):
    """A key of the speculative configuration that only some versions accept."""

    key: str
    kind: Literal["removed", "renamed", "no-effect"]
    text: str
    becomes: str | None = None


class Known(Row):
    """Flags that no role stands for and that a version has."""

    flags: tuple[str, ...]


class RetiredEnv(Row):
    """An environment variable that only some versions read."""

    name: str
    text: str
    becomes: tuple[str, ...] = ()


class Default(Row):
    """A value the engine takes when nothing is said. With ``role``: said by that role otherwise."""

    name: str
    value: JsonValue
    role: str | None = None
    method: Method | None = None


class ValueSpelling(Row):
    """A role's value as the other engine writes it, and this one's word for it."""

    role: str
    given: str
    becomes: str


class Batch(Row):
    """The scheduler's sizes when the command names none, for cards with at least ``min_gib`` GiB."""

    min_gib: float
    not_card: str | None = None
    device: Device = "cuda"
    max_num_seqs: int
    max_num_batched_tokens: int
    note: str = ""


class Tree(Row):
    """SGLang's own steps, top-k and draft tokens for a family of targets."""

    methods: tuple[Method, ...]
    family: str | None = None
    steps: int
    topk: int
    draft_tokens: int


class Metric(Row):
    role: str
    name: str


class Env(Row):
    """A variable the service runs with.

    In the value ``{ranks}`` is "0|1|..." over the ranks of one node; ``{address}`` and ``{interface}`` are
    this node's on the network that the nodes share.
    """

    name: str
    value: str
    device: Device | None = None
    min_world: int = 1
    min_nodes: int = 1


class Piece(Row):
    """Something beside the wheel without which a feature is off or slow."""

    name: str
    how: Literal["command", "wheel"]
    argv: tuple[str, ...]
    #: The package that brings it: with that in the lock nothing is missing, also on a host without a network.
    wheel: str
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
