"""The one call: pick the source, read the small files, read the headers, refuse what is broken."""

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from checks.facts import Missing
from checks.modelmeta.errors import NotAModel, WeightsBroken
from checks.modelmeta.headers import read_header
from checks.modelmeta.http import HubSource, MirrorSource
from checks.modelmeta.meta import FileInfo, ModelMeta, TensorInfo
from checks.modelmeta.source import FolderSource, Source
from checks.modelmeta.tokenizer import read_tokenizer
from inventory.model import ModelRef

__all__ = ["DEFAULT_ENDPOINT", "load_model_meta"]

DEFAULT_ENDPOINT = "https://huggingface.co"
CONFIG_LIMIT = 16 << 20
TOKENIZER_LIMIT = 128 << 20
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model(-\d+-of-\d+)?\.safetensors")


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
    source = _source(ref, endpoint or DEFAULT_ENDPOINT, token, timeout)
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
    shards = _shards(source, files)
    if not shards:
        return _no_headers(files)
    workers = 1 if isinstance(source, FolderSource) else min(8, len(shards))
    with ThreadPoolExecutor(workers) as pool:
        parts = pool.map(lambda name: _header(source, name, files[name].size), shards)
        merged: dict[str, TensorInfo] = {}
        for part in parts:
            merged |= part
    return merged


def _header(source: Source, name: str, size: int) -> dict[str, TensorInfo]:
    return read_header(
        f"{name} of {source.label}", size, lambda start, length: source.read_range(name, start, length)
    )


def _shards(source: Source, files: dict[str, FileInfo]) -> list[str]:
    """The weight files an engine would load: those of the index, else model*.safetensors, else any."""
    index = _json_file(source, INDEX) if INDEX in files else None
    if index is not None:
        named = index.get("weight_map")
        if not isinstance(named, dict) or not named:
            raise NotAModel(f"{INDEX} of {source.label} has no weight_map", hint="fetch it again")
        shards = sorted({str(v) for v in named.values()})
        for shard in shards:
            _require(source, files, shard)
        return shards
    tensors = [name for name in files if name.endswith(".safetensors") and "/" not in name]
    return sorted(n for n in tensors if _SHARD.fullmatch(n)) or sorted(tensors)


def _require(source: Source, files: dict[str, FileInfo], shard: str) -> None:
    if shard not in files and isinstance(source, MirrorSource):
        size = source.size(shard)
        if size is not None:
            files[shard] = FileInfo(size)
    if shard not in files:
        raise WeightsBroken(
            f"{source.label} has no {shard}, which {INDEX} names",
            slug="weights-truncated",
            hint="the copy is incomplete; download the model again",
        )


def _no_headers(files: Mapping[str, FileInfo]) -> Missing:
    torch = sorted(n for n in files if n.endswith((".bin", ".pt", ".pth")))
    if torch:
        return Missing(f"weights are in {torch[0]} (a pickle), which has no header to read")
    other = sorted(n for n in files if n.endswith(".gguf"))
    return Missing(f"weights are in {other[0]}" if other else "no weight files")
