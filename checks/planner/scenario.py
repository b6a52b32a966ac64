"""What is to be planned: one start of one engine, as a frozen object, with the engine's own defaults.

`Scenario.from_mapping` reads a scenario file (the fields of one row of the measurements), tolerating absent
and null fields; anything malformed is an InventoryError that names the field.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.planner.engines import Rules, context, release_of, rules_for, static_pool
from checks.planner.fields import Fields
from checks.planner.from_tensors import Tensor
from checks.planner.quant import scheme_of
from checks.planner.shapes import Shape, shape_of
from checks.planner.units import GIB, MIB
from checks.planner.work import Work
from inventory.catalogue import EngineRelease
from inventory.errors import InventoryError
from inventory.jsonfile import read_json

__all__ = ["Scenario", "load_scenario"]

_UTILIZATION = 0.92
#: SGLang chooses by free memory; this only sizes what is planned per request.
_SEQS = 256
_HOPPER = ("h100", "h200", "h800", "h20", "gh200")

MEMORYLESS = frozenset({"none", "ngram", "ngram_gpu", "suffix"})


@dataclass(frozen=True)
class Scenario:
    """Memory in bytes per GPU, lengths in tokens. ``None`` means the engine's default.

    ``config`` and ``draft_config`` are decoded config.json files; ``tensors`` and ``draft_tensors``, when
    known, map each checkpoint tensor to its (dtype, shape) and then decide instead of the configuration.
    ``other_used`` is what other processes hold. ``load_format`` "dummy" starts share the draft's head and
    embedding with the target, as the engine does when a checkpoint brings none. ``warm_cache``: this model
    was compiled on this host before, so its start skips the compiler's benchmarks.
    """

    config: Mapping[str, Any]
    device_total: int
    engine: str = "vllm"
    version: str | None = None
    device: str = ""
    gpus: int | None = None
    tp: int = 1
    pp: int = 1
    utilization: float | None = None
    max_len: int | None = None
    auto_len: bool = False
    seqs: int | None = None
    batched_tokens: int | None = None
    kv_dtype: str = "auto"
    kv_bytes: int | None = None
    block_size: int = 16
    eager: bool = False
    quantization: str | None = None
    speculative: Mapping[str, Any] = field(default_factory=dict)
    draft_config: Mapping[str, Any] | None = None
    tensors: Mapping[str, Tensor] | None = None
    draft_tensors: Mapping[str, Tensor] | None = None
    other_used: int = 0
    load_format: str = "auto"
    flashinfer: bool = True
    warm_cache: bool = False
    extra_args: tuple[str, ...] = ()
    name: str = ""

    def with_(self, **changes: Any) -> "Scenario":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @property
    def release(self) -> EngineRelease:
        """The catalogue's rows for this version: defaults of flags and scheduler sizes."""
        return release_of(self.engine, None if self.version in {None, "", "auto"} else self.version)

    @property
    def rules(self) -> Rules:
        return rules_for(self.engine, self.release.version)

    @property
    def method(self) -> str:
        """The drafting method; "draft_model" when only a model is named, "none" without speculation."""
        if not self.speculative:
            return "none"
        given = self.speculative.get("method")
        if given:
            return str(given)
        if str(self.speculative.get("model", "")) in {"ngram", "[ngram]"}:
            return "ngram"
        return _detected(self.draft_config) if self.speculative.get("model") else "none"

    @property
    def k(self) -> int:
        return int(self.speculative.get("num_speculative_tokens") or 0) if self.method != "none" else 0

    @property
    def needs_draft(self) -> bool:
        return self.method not in MEMORYLESS

    @property
    def hopper(self) -> bool:
        """Compute capability 9.0, told by the card's name."""
        return any(name in self.device.lower() for name in _HOPPER)

    def used_utilization(self) -> float:
        if self.utilization is not None:
            return self.utilization
        value = self.release.defaults.get("gpu_memory_utilization")
        return float(value) if isinstance(value, (int, float)) else _UTILIZATION

    def used_seqs(self) -> int:
        return self.seqs or self._batch()[0]

    def used_batched_tokens(self) -> int:
        return self.batched_tokens or self._batch()[1]

    def _batch(self) -> tuple[int, int]:
        """Sequences and tokens a step, as the engine would choose them for this card."""
        found = self.release.batch_defaults(memory_gib=self.device_total / GIB, card=self.device)
        if found is not None:
            return found.max_num_seqs, found.max_num_batched_tokens
        speculating = self.release.defaults.get("max_num_seqs_with_speculation")
        seqs = int(speculating) if self.speculative and isinstance(speculating, int) else _SEQS
        return seqs, static_pool().chunked_prefill(self.device_total)

    @property
    def graphs_budgeted(self) -> bool:
        """True when this version takes its estimate of graph memory out of the budget."""
        return self.release.defaults.get("cudagraph_memory_subtracted") is True

    def used_max_len(self, target: Shape) -> int:
        """The length asked for, or what the model was made for."""
        return self.max_len or _derived_length(self.config, target)

    def work(self) -> Work:
        """Every default resolved. Raises InventoryError when a configuration lacks a needed field."""
        target = shape_of(self.config)
        draft = None
        if self.draft_config is not None and self.needs_draft:
            draft = shape_of(self.draft_config, source="draft config.json")
        return Work(
            target=target,
            draft=draft,
            scheme=scheme_of(target.quantization, self.quantization, hopper=self.hopper),
            draft_scheme=scheme_of(draft.quantization, hopper=self.hopper) if draft else None,
            method=self.method,
            k=self.k,
            tp=self.tp,
            seqs=self.used_seqs(),
            batched_tokens=self.used_batched_tokens(),
            max_len=self.used_max_len(target),
            block_size=self.block_size,
            kv_dtype=self.kv_dtype,
            eager=self.eager,
            probabilistic=self.speculative.get("draft_sample_method") == "probabilistic",
            own_head=self._own_head(),
            own_embed=self._own_embedding(target, draft),
            flashinfer_sampler=self.flashinfer,
            compute_units=132,
            cold_compile=not self.warm_cache,
            hopper=self.hopper,
            workspace=context().workspace_mib * MIB,
        )

    def _own_head(self) -> bool:
        """True when the draft brings an lm_head that the engine keeps."""
        if self.load_format == "dummy":
            return False
        if self.draft_tensors is None:
            return self.method == "eagle3"
        return any("lm_head" in name for name in self.draft_tensors)

    def _own_embedding(self, target: Shape, draft: Shape | None) -> bool:
        """True when the draft keeps its own embedding: one of another width; an equal copy is shared."""
        if draft is None or self.load_format == "dummy":
            return False
        if self.draft_tensors is not None and not any("embed_tokens" in n for n in self.draft_tensors):
            return False
        return draft.hidden != target.hidden

    @classmethod
    def from_mapping(cls, row: Mapping[str, Any], *, source: str = "scenario") -> "Scenario":
        """One row of measurements, or a hand-written scenario. Unknown fields are ignored."""
        if not isinstance(row, Mapping):
            raise InventoryError(f"{source} is not a JSON object")
        read = Fields(row, source)
        config = row.get("model_config")
        if not isinstance(config, Mapping):
            raise InventoryError(f"{source} has no model_config", hint="give the target's config.json there")
        length, spec = row.get("max_model_len"), row.get("speculative_config") or {}
        if not isinstance(spec, Mapping):
            raise InventoryError(f"{source}: speculative_config is not an object")
        auto = length in {"auto", -1}
        return cls(
            config=config,
            device_total=int(read.number("device_total_gib", 0.0, 1 << 20) * GIB),
            engine=str(row.get("engine") or "vllm"),
            version=row.get("engine_version") or row.get("version"),
            device=str(row.get("device") or ""),
            gpus=read.whole("gpus") or read.whole("num_gpus"),
            tp=read.whole("tensor_parallel_size") or 1,
            pp=read.whole("pipeline_parallel_size") or 1,
            utilization=read.optional("gpu_memory_utilization", 0.0, 1.0),
            max_len=None if auto else read.whole("max_model_len"),
            auto_len=auto,
            seqs=read.whole("max_num_seqs"),
            batched_tokens=read.whole("max_num_batched_tokens"),
            kv_dtype=str(row.get("kv_cache_dtype") or "auto"),
            kv_bytes=read.whole("kv_cache_memory_bytes"),
            block_size=read.whole("block_size") or 16,
            eager=bool(row.get("enforce_eager") or False),
            quantization=row.get("quantization"),
            speculative=dict(spec),
            draft_config=row.get("draft_model_config"),
            other_used=int((read.optional("other_used_gib", 0.0, 1 << 20) or 0.0) * GIB),
            load_format=str(row.get("load_format") or "dummy"),
            flashinfer=bool(row.get("flashinfer") or False),
            warm_cache=bool(row.get("warm_cache") or False),
            extra_args=tuple(str(a) for a in row.get("extra_args") or ()),
            name=str(row.get("id") or row.get("name") or ""),
        )


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file. Raises InventoryError when it isn't one."""
    data = read_json(path, "scenario")
    return Scenario.from_mapping(data, source=path.name)


def _detected(config: Mapping[str, Any] | None) -> str:
    names = " ".join(str(n) for n in (config or {}).get("architectures") or []).lower()
    if "eagle3" in names:
        return "eagle3"
    return "eagle" if "eagle" in names else "draft_model"


def _derived_length(config: Mapping[str, Any], target: Shape) -> int:
    """The engine's default max_model_len: max_position_embeddings, stretched by a RoPE scaling factor."""
    scaling = config.get("rope_scaling") or {}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "") if isinstance(scaling, Mapping) else ""
    if kind in {"yarn", "linear", "dynamic"} and scaling.get("factor"):
        base = int(scaling.get("original_max_position_embeddings") or target.max_positions)
        return int(base * float(scaling["factor"]))
    return target.max_positions
