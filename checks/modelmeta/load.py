"""The one call: pick the source, read the small files, read the headers, refuse what is broken."""

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

from checks.facts import Missing
from checks.modelmeta.errors import NotAModel, WeightsBroken
from checks.modelmeta.headers import read_header
from checks.modelmeta.hub import HubSource
from checks.modelmeta.meta import FileInfo, ModelMeta, TensorInfo
from checks.modelmeta.mirror import MirrorSource
from checks.modelmeta.pickled import read_pickled
from checks.modelmeta.source import FolderSource, Source
from checks.modelmeta.tokenizer import read_tokenizer
from inventory.model import ModelRef

__all__ = ["DEFAULT_ENDPOINT", "load_model_meta"]

DEFAULT_ENDPOINT = "https://huggingface.co"
CONFIG_LIMIT = 16 << 20
TOKENIZER_LIMIT = 128 << 20
INDEX = "model.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"
#: A trainer's leavings, no weights.
NO_WEIGHTS = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})
_SHARD = re.compile(r"model(-\d+-of-\d+)?\.safetensors|pytorch_model(-\d+-of-\d+)?\.bin")

ReadShard = Callable[[str, int, Callable[[int, int], bytes]], Mapping[str, TensorInfo] | Missing]


def load_model_meta(
    ref: ModelRef,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    timeout: float = 10.0,
    tokenizer: bool = True,
) -> ModelMeta:
    """Read what ``ref`` says about itself; no weights are downloaded.

    ``endpoint`` is the hub (default the public one), ``token`` is sent only when given, ``timeout`` is in
    seconds per read, ``tokenizer=False`` skips those files (up to some 20 MB). Raises NotAModel,
    WeightsBroken, RepoMissing, RevisionMissing, HubDenied, RateLimited or HubUnreachable.
    """
    with closing(_source(ref, endpoint or DEFAULT_ENDPOINT, token, timeout)) as source:
        return _read(source, tokenizer=tokenizer)


def _read(source: Source, *, tokenizer: bool) -> ModelMeta:
    files = dict(source.files())
    config = _json_file(source, "config.json")
    if config is None:
        raise NotAModel(
            f"{source.label} is not a model: it has no config.json", hint="check the name and revision"
        )
    tensors = _tensors(source, files)
    return ModelMeta(
        label=source.label,
        commit=source.commit,
        config=config,
        generation_config=_json_file(source, "generation_config.json")
        or Missing("no generation_config.json"),
        tensors=tensors,
        files=files,
        tokenizer=_tokenizer(source, files) if tokenizer else Missing("not asked for"),
        total_bytes=sum(f.size for f in files.values()),
    )


def _source(ref: ModelRef, endpoint: str, token: str | None, timeout: float) -> Source:
    if ref.path:
        return FolderSource(ref.path)
    if ref.url:
        return MirrorSource(ref.url, token=None, timeout=timeout)
    return HubSource(ref.label, ref.revision, endpoint=endpoint, token=token, timeout=timeout)


def _json_file(source: Source, name: str) -> Mapping[str, Any] | None:
    raw = source.read(name, CONFIG_LIMIT)
    if raw is None:
        return None
    try:
        decoded = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise NotAModel(
            f"{name} of {source.label} is not JSON: {e}", hint=f"it starts with {raw[:40]!r}; fetch it again"
        ) from e
    if not isinstance(decoded, dict):
        raise NotAModel(f"{name} of {source.label} is not a JSON object", hint="fetch it again")
    return decoded


def _tokenizer(source: Source, files: Mapping[str, FileInfo]) -> Any:
    return read_tokenizer(lambda name: source.read(name, TOKENIZER_LIMIT) if name in files else None)


def _tensors(source: Source, files: dict[str, FileInfo]) -> Mapping[str, TensorInfo] | Missing:
    """All shards merged: safetensors when there are any, as the engines prefer them, else torch files."""
    shards = _shards(source, files, INDEX, ".safetensors")
    if shards:
        return _merged(source, files, shards, read_header)
    shards = _shards(source, files, TORCH_INDEX, ".bin")
    if shards:
        return _merged(source, files, shards, read_pickled)
    other = sorted(n for n in files if n.endswith((".gguf", ".pt", ".pth")))
    return Missing(f"weights are in {other[0]}" if other else "no weight files")


def _merged(
    source: Source, files: Mapping[str, FileInfo], shards: list[str], read: ReadShard
) -> Mapping[str, TensorInfo] | Missing:
    def one(name: str) -> Mapping[str, TensorInfo] | Missing:
        return read(f"{name} of {source.label}", files[name].size, partial(source.read_range, name))

    merged: dict[str, TensorInfo] = {}
    workers = 1 if isinstance(source, FolderSource) else min(8, len(shards))
    with ThreadPoolExecutor(workers) as pool:
        for part in pool.map(one, shards):
            if isinstance(part, Missing):
                return part
            merged |= part
    return merged


def _shards(source: Source, files: dict[str, FileInfo], index_name: str, ending: str) -> list[str]:
    """The weight files an engine would load: those of the index, else the usual names, else any."""
    index = _json_file(source, index_name) if index_name in files else None
    if index is not None:
        named = index.get("weight_map")
        if not isinstance(named, dict) or not named:
            raise NotAModel(f"{index_name} of {source.label} has no weight_map", hint="fetch it again")
        shards = sorted({str(v) for v in named.values()})
        for shard in shards:
            _require(source, files, shard, index_name)
        return shards
    weights = [name for name in files if name.endswith(ending) and "/" not in name and name not in NO_WEIGHTS]
    return sorted(n for n in weights if _SHARD.fullmatch(n)) or sorted(weights)


def _require(source: Source, files: dict[str, FileInfo], shard: str, index: str) -> None:
    if shard not in files and isinstance(source, MirrorSource):
        size = source.size(shard)
        if size is not None:
            files[shard] = FileInfo(size)
    if shard not in files:
        raise WeightsBroken(
            f"{source.label} has no {shard}, which {index} names",
            slug="weights-truncated",
            hint="the copy is incomplete; download the model again",
        )
