"""A safetensors header: eight bytes of length, then JSON. Only these bytes are ever read.

The format's own limit for a header is 100 MB, and the data must cover the rest of the file exactly:
(safetensors 0.5, src/tensor.rs). Both are checked, so a cut download is found without loading it.
"""

import json
import struct
from collections.abc import Callable
from math import prod
from typing import Any

from checks.modelmeta.errors import WeightsBroken
from checks.modelmeta.meta import TensorInfo

__all__ = ["FIRST_READ", "LFS_POINTER", "read_header"]

MAX_HEADER = 100_000_000
#: Covers the header of nearly every shard in one request.
FIRST_READ = 128 * 1024
LFS_POINTER = b"version https://git-lfs"
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip

ReadRange = Callable[[int, int], bytes]


def read_header(file: str, size: int, read: ReadRange) -> dict[str, TensorInfo]:
    """Tensor name to shape, type and bytes. ``read(start, length)`` may return fewer bytes at the end.

    Raises WeightsBroken (truncated, LFS pointer, not safetensors) naming ``file``.
    """
    head = read(0, min(FIRST_READ, size))
    length = _header_length(file, size, head)
    if len(head) < 8 + length:
        head += read(len(head), 8 + length - len(head))
    if len(head) < 8 + length:
        raise _truncated(file, f"its header needs {length} bytes, only {len(head) - 8} came")
    entries = _decode(file, head[8 : 8 + length])
    tensors = {name: _tensor(file, name, e) for name, e in entries.items() if name != "__metadata__"}
    end = max((e["data_offsets"][1] for n, e in entries.items() if n != "__metadata__"), default=0)
    _check_size(file, size, 8 + length + end)
    return tensors


def _header_length(file: str, size: int, head: bytes) -> int:
    if head.startswith(LFS_POINTER):
        raise WeightsBroken(
            f"{file} is a Git LFS pointer of {size} bytes, not weights",
            slug="weights-lfs-pointer",
            hint="fetch the file itself: `git lfs pull` in that folder, or download it from the hub",
        )
    if len(head) < 8:
        raise _truncated(file, f"{size} bytes are too few for a header")
    length = int(struct.unpack("<Q", head[:8])[0])
    if length > MAX_HEADER:
        shown = head[:8].decode("ascii", "replace")
        raise WeightsBroken(
            f"{file} is not a safetensors file: it starts with {shown!r}",
            slug="weights-lfs-pointer",
            hint="an HTML error page or another format was saved under this name; download it again",
        )
    if 8 + length > size:
        raise _truncated(file, f"its header alone takes {8 + length} bytes, the file has {size}")
    return length


def _decode(file: str, raw: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise _corrupt(file, f"its header is not JSON: {e}") from e
    if not isinstance(entries, dict):
        raise _corrupt(file, "its header is not a JSON object")
    return entries


def _tensor(file: str, name: str, entry: Any) -> TensorInfo:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (TypeError, KeyError, ValueError) as e:
        raise _corrupt(file, f"the entry of tensor {name} has no dtype, shape and data_offsets") from e
    item = _ITEM_BYTES.get(dtype)
    if end < begin or min(shape, default=0) < 0 or (item and end - begin != item * prod(shape)):
        raise _corrupt(file, f"tensor {name}: {dtype} {list(shape)} does not take {end - begin} bytes")
    return TensorInfo(dtype, shape, end - begin, file)


def _check_size(file: str, size: int, wanted: int) -> None:
    if size < wanted:
        raise _truncated(file, f"it has {size} of {wanted} bytes")
    if size > wanted:
        raise _corrupt(file, f"{size - wanted} bytes follow the last tensor")


def _truncated(file: str, what: str) -> WeightsBroken:
    return WeightsBroken(
        f"{file} is truncated: {what}", slug="weights-truncated", hint="delete it and download it again"
    )


def _corrupt(file: str, what: str) -> WeightsBroken:
    return WeightsBroken(
        f"{file} is damaged: {what}", slug="weights-truncated", hint="delete it and download it again"
    )
