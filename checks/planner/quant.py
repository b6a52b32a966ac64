"""Bytes of one linear layer's weight under a quantisation scheme, and which layers it covers.

Sources: the create_weights methods of vLLM 0.25.1 model_executor/layers/quantization/*.py.
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from checks.planner.units import cdiv
from inventory.errors import InventoryError

__all__ = ["Scheme", "scheme_of"]


@dataclass(frozen=True)
class Scheme:
    """How linear weights are stored. ``bits`` per element; scales per ``group`` inputs (0: per output)."""

    name: str
    bits: float
    group: int
    scale_bytes: float
    zero_bits: int = 0
    index_bytes: int = 0
    block: tuple[int, int] | None = None
    skip: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        """False for a layer that the configuration leaves unquantised. lm_head and embeddings always are."""
        return not any(_matches(pattern, name) for pattern in self.skip)

    def linear_bytes(self, rows: int, cols: int) -> list[int]:
        """Parameter sizes of a weight with ``rows`` outputs and ``cols`` inputs."""
        sizes = [int(rows * cols * self.bits / 8)]
        if self.block is not None:
            sizes.append(int(cdiv(rows, self.block[0]) * cdiv(cols, self.block[1]) * self.scale_bytes))
            return sizes
        groups = cdiv(cols, self.group) if self.group > 0 else 1
        sizes.append(int(rows * groups * self.scale_bytes))
        if self.zero_bits:
            sizes.append(rows * groups * self.zero_bits // 8)
        if self.index_bytes:
            sizes.append(cols * self.index_bytes)
        return sizes


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.search(pattern[3:], name) is not None
    if any(c in pattern for c in "*?"):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern == name or pattern in name.split(".") or name.endswith("." + pattern)


def scheme_of(
    config: Mapping[str, Any] | None, override: str | None = None, *, hopper: bool = False
) -> Scheme | None:
    """The scheme of a quantization_config, or of a scheme asked for at start (``fp8``, ``bitsandbytes``).

    On Hopper 4-bit zero points are unpacked to the width of the scales (Machete, which only runs there).
    None means unquantised. Raises InventoryError for a method whose storage is not known here.
    """
    if config is None and override is None:
        return None
    data = dict(config or {})
    method = str(data.get("quant_method") or override or "").lower().replace("-", "_")
    skip = tuple(str(s) for s in data.get("modules_to_not_convert") or data.get("ignore") or ())
    build = _BUILDERS.get(_ALIASES.get(method, method))
    if build is None:
        known = ", ".join(sorted(_BUILDERS))
        raise InventoryError(f"unknown quantisation method {method!r}", hint=f"known: {known}")
    scheme = build(data, skip)
    if hopper and scheme.zero_bits and scheme.group > 0 and scheme.name != "gptq":
        return replace(scheme, zero_bits=int(scheme.scale_bytes * 8))
    return scheme


def _awq(data: Mapping[str, Any], skip: tuple[str, ...]) -> Scheme:
    bits = int(data.get("bits") or data.get("w_bit") or 4)
    group = int(data.get("group_size") or data.get("q_group_size") or 128)
    return Scheme("awq", bits, group, 2, zero_bits=bits, skip=skip)


def _gptq(data: Mapping[str, Any], skip: tuple[str, ...]) -> Scheme:
    bits = int(data.get("bits") or 4)
    return Scheme(
        "gptq", bits, int(data.get("group_size") or 128), 2, zero_bits=bits, index_bytes=4, skip=skip
    )


def _fp8(data: Mapping[str, Any], skip: tuple[str, ...]) -> Scheme:
    block = data.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2:
        return Scheme("fp8", 8, 0, 4, block=(int(block[0]), int(block[1])), skip=skip)
    return Scheme("fp8", 8, 0, 4, skip=skip)


def _bitsandbytes(data: Mapping[str, Any], skip: tuple[str, ...]) -> Scheme:
    if data.get("load_in_8bit"):
        return Scheme("bitsandbytes", 8, 0, 4, skip=skip)
    return Scheme("bitsandbytes", 4, 64, 4, skip=skip)


def _mxfp4(_data: Mapping[str, Any], skip: tuple[str, ...]) -> Scheme:
    return Scheme("mxfp4", 4, 32, 1, skip=skip)


def _modelopt(data: Mapping[str, Any], skip: tuple[str, ...]) -> Scheme:
    algorithm = str(data.get("quant_algo") or data.get("quantization", {}).get("quant_algo") or "FP8").upper()
    if "FP4" in algorithm:
        return Scheme("nvfp4", 4, 16, 1, skip=skip)
    return Scheme("fp8", 8, 0, 4, skip=skip)


def _compressed_tensors(data: Mapping[str, Any], skip: tuple[str, ...]) -> Scheme:
    groups = data.get("config_groups") or {}
    weights = next((g.get("weights") for g in groups.values() if isinstance(g, Mapping)), None) or {}
    bits = int(weights.get("num_bits") or 8)
    strategy = weights.get("strategy")
    group = int(weights.get("group_size") or 0) if strategy in {"group", "tensor_group"} else 0
    block = weights.get("block_structure")
    if strategy == "block" and isinstance(block, list):
        return Scheme("compressed-tensors", bits, 0, 4, block=(int(block[0]), int(block[1])), skip=skip)
    zero = 0 if weights.get("symmetric", True) else bits
    scale = 1 if weights.get("type") == "float" and bits == 4 else 2
    return Scheme("compressed-tensors", bits, group, scale, zero_bits=zero, skip=skip)


_ALIASES = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "fbgemm_fp8": "fp8",
    "modelopt_fp4": "modelopt",
    "compressed_tensors": "compressed_tensors",
    "ptpc_fp8": "fp8",
}
_BUILDERS = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "compressed_tensors": _compressed_tensors,
}
