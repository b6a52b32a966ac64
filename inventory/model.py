"""The desired state as frozen, validated objects: hosts, model references, deployments.

Everything here is data. Nothing reads the environment, a file or a host; `inventory.load` does the
reading and turns a validation error into one that names file, line and the nearest valid key.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

__all__ = ["METHODS", "Deployment", "Device", "Draft", "EngineName", "Host", "Method", "ModelRef"]

EngineName = Literal["vllm", "sglang"]
Device = Literal["cuda", "cpu"]
Method = Literal["none", "ngram", "draft_model", "eagle", "eagle3", "mtp", "suffix"]
METHODS: tuple[Method, ...] = ("none", "ngram", "draft_model", "eagle", "eagle3", "mtp", "suffix")

#: Methods that load a second checkpoint.
METHODS_WITH_MODEL: frozenset[Method] = frozenset({"draft_model", "eagle", "eagle3"})

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECRET_REF = re.compile(r"(env|file):.+")
_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_REVISION = re.compile(r"[\w.][\w./-]{0,254}", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_SECRET = re.compile(r"TOKEN$|API_KEY$|PASSWORD$|SECRET$", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

PositiveInt = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Host(_Strict):
    """One machine of the inventory. ``vars`` holds every Ansible variable that applies to it, merged."""

    name: str
    address: str
    port: int = 22
    user: str | None = None
    groups: tuple[str, ...] = ()
    vars: dict[str, Any] = Field(default_factory=dict)

    @property
    def explicit_port(self) -> int | None:
        """The port the inventory names; None leaves it to ssh_config."""
        return self.port if "port" in self.model_fields_set else None


class ModelRef(_Strict):
    """Where a model comes from: exactly one of a hub repo, a folder on the operator's machine, a mirror.

    ``revision`` is a commit (40 hex digits) or a branch; `provision` resolves a branch to its commit once
    and records the commit in the release, so that what serves never moves by itself.
    """

    repo: str | None = None
    revision: str = "main"
    path: str | None = None
    url: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [n for n in ("repo", "path", "url") if getattr(self, n)]
        if len(given) != 1:
            raise ValueError(f"give exactly one of repo, path, url (got {', '.join(given) or 'none'})")
        if self.repo and not _REPO.fullmatch(self.repo):
            raise ValueError(f"repo {self.repo!r} is not owner/name")
        if not _REVISION.fullmatch(self.revision):
            raise ValueError(f"revision {self.revision!r} is not a commit, branch or tag")
        return self

    @property
    def pinned(self) -> bool:
        """True when the revision is a commit, or when the source has no revisions."""
        return self.repo is None or bool(_COMMIT.fullmatch(self.revision))

    @property
    def label(self) -> str:
        """A name for people and folders: the repo, else the last part of the path or address."""
        return self.repo or (self.path or self.url or "").rstrip("/").rsplit("/", 1)[-1]


class Draft(_Strict):
    """How tokens are guessed ahead. ``none`` serves the target alone."""

    method: Method = "none"
    model: ModelRef | None = None
    num_speculative_tokens: PositiveInt | None = None
    tensor_parallel: PositiveInt | None = None
    prompt_lookup_max: PositiveInt | None = None
    prompt_lookup_min: PositiveInt | None = None
    num_steps: PositiveInt | None = None
    topk: PositiveInt | None = None
    #: Above this many requests running at once speculation is off (where the engine version can do it).
    max_batch_size: PositiveInt | None = None
    #: Further keys handed to the engine's speculative configuration as they are.
    extra: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.method in METHODS_WITH_MODEL and self.model is None:
            raise ValueError(f"method {self.method} needs a model")
        if self.method in {"none", "ngram", "suffix"} and self.model is not None:
            raise ValueError(f"method {self.method} takes no model")
        if self.method == "none" and self.num_speculative_tokens is not None:
            raise ValueError("method none takes no num_speculative_tokens")
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"prompt_lookup_min {low} is larger than prompt_lookup_max {high}")
        return self


class Deployment(_Strict):
    """One endpoint as wanted: engine, target, draft, sizes. ``None`` means the engine's own default."""

    name: str
    engine: EngineName
    engine_version: str = "auto"
    device: Device = "cuda"
    #: A wheel lock under inventory/locks, without ".txt"; unset: chosen by engine, version, device.
    lock: str | None = None
    target: ModelRef
    draft: Draft = Draft()
    served_model_name: str | None = None
    tensor_parallel: PositiveInt = 1
    pipeline_parallel: PositiveInt = 1
    nodes: PositiveInt = 1
    distributed: Literal["auto", "native", "ray"] = "auto"
    #: Of several nodes: the host of rank 0, by its inventory name; unset: the first in the inventory.
    head: Annotated[str, Field(min_length=1)] | None = None
    #: Of several nodes: the interface that reaches the others; unset: the one network all share.
    interface: Annotated[str, Field(min_length=1)] | None = None
    #: Rank 0 listens here for the others' engines, on the next port for their supervisors.
    master_port: Annotated[int, Field(gt=1023, lt=65535)] = 29501
    distributed_executor_backend: Literal["mp", "ray"] | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_model_len: PositiveInt | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    kv_cache_memory_bytes: PositiveInt | None = None
    max_num_seqs: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    block_size: PositiveInt | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    disable_custom_all_reduce: bool = False
    trust_remote_code: bool = False
    host: str = "127.0.0.1"
    port: Annotated[int, Field(gt=0, lt=65536)] = 8000
    #: References, never values: "env:NAME" or "file:PATH", read on the operator's machine at apply.
    api_key: str | None = None
    hub_token: str | None = None
    #: Where wheels and weights come from: the host's own network, or pushed from the operator.
    wheels_from: Literal["host", "push"] = "host"
    weights_from: Literal["host", "push"] = "host"
    env: dict[str, str] = Field(default_factory=dict)
    extra_args: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("a name is lower case letters, digits, '.', '_', '-' (it names files and units)")
        return value

    @field_validator("api_key", "hub_token")
    @classmethod
    def _reference(cls, value: str | None) -> str | None:
        if value is not None and not _SECRET_REF.fullmatch(value):
            raise ValueError('a secret is a reference, "env:NAME" or "file:PATH", never the value itself')
        return value

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _ENV_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of an environment variable")
            if _ENV_SECRET.search(name):
                raise ValueError(f"{name} is a secret: use api_key or hub_token, which never reach the unit")
            if not text or any(c in text for c in "\0\r\n"):
                raise ValueError(f"{name} needs a value of one line (an empty one crashes vLLM's workers)")
        return value

    @field_validator("extra_args")
    @classmethod
    def _words(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not word or any(c in word for c in "\0\r\n") for word in value):
            raise ValueError("each item is one word or value on one line")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.host not in {"127.0.0.1", "::1", "localhost"} and self.api_key is None:
            raise ValueError(f"host {self.host} is not loopback: set api_key, or keep host 127.0.0.1")
        if (world := self.tensor_parallel * self.pipeline_parallel) % self.nodes:
            raise ValueError(
                f"tensor_parallel x pipeline_parallel is {world} ranks, which {self.nodes} nodes can't share"
            )
        if self.nodes == 1 and (given := [k for k in ("head", "interface") if getattr(self, k)]):
            raise ValueError(f"{' and '.join(given)} say where nodes meet, but nodes is 1")
        if self.nodes > 1 and self.port in self._meeting_ports():
            raise ValueError(
                f"port {self.port} is where the nodes meet (master_port {self.master_port} and the next"
                f"{', and Ray above them' if self.distributed == 'ray' else ''})"
            )
        return self

    def _meeting_ports(self) -> set[int]:
        """The engines' and the supervisors'; Ray's, see inventory/ray.py."""
        m = self.master_port
        return {*range(m, m + 8), *range(m + 100, m + 1000)} if self.distributed == "ray" else {m, m + 1}

    @property
    def model_name(self) -> str:
        """The name clients send as ``model``."""
        return self.served_model_name or self.target.label
