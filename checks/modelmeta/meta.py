"""The frozen result. Sizes are bytes; anything that could not be read is a `Missing` with its reason."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from checks.facts import Missing

__all__ = ["FileInfo", "ModelMeta", "TensorInfo", "TokenizerInfo"]


@dataclass(frozen=True)
class FileInfo:
    """One file of the model. The hub gives ``sha256`` for large files and ``git_sha1`` for all."""

    size: int
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its header describes it. ``dtype`` in safetensors' spelling (``BF16``, ``F8_E4M3``)."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class TokenizerInfo:
    """Enough of a tokenizer to tell whether two are the same, without loading either.

    ``vocab_size`` counts base vocabulary and added tokens; ``vocab_sha256`` is over the vocabulary with its
    merges in a canonical form, so that two files that differ only in layout compare equal.
    """

    vocab_size: int | None
    vocab_sha256: str
    added_tokens: Mapping[str, int] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template_sha256: str | None = None
    source: str = ""
    #: Text to id, base vocabulary and added tokens; empty when only a hash of the file is known.
    vocab: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class ModelMeta:
    """A model seen from outside. Treat the mappings as read-only.

    ``tensors`` maps name to header entry over all shards. ``total_bytes`` is the sum of the real file
    sizes: what a download writes to disk.
    """

    label: str
    commit: str | None
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] | Missing
    tensors: Mapping[str, TensorInfo] | Missing
    files: Mapping[str, FileInfo]
    tokenizer: TokenizerInfo | Missing
    total_bytes: int

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of the configuration (multimodal models nest it)."""
        for key in ("text_config", "llm_config", "language_config"):
            nested = self.config.get(key)
            if isinstance(nested, Mapping):
                return nested
        return self.config

    @property
    def architectures(self) -> tuple[str, ...]:
        names = self.config.get("architectures")
        return tuple(str(n) for n in names) if isinstance(names, list) else ()

    @property
    def weight_bytes(self) -> int | Missing:
        """Bytes of all tensors, without headers or files that no engine loads."""
        if isinstance(self.tensors, Missing):
            return self.tensors
        return sum(t.nbytes for t in self.tensors.values())

    def named(self, suffix: str) -> Iterator[tuple[str, TensorInfo]]:
        """Tensors whose name is ``suffix`` or ends with ``.suffix``."""
        if not isinstance(self.tensors, Missing):
            for name, info in self.tensors.items():
                if name == suffix or name.endswith("." + suffix):
                    yield name, info
