"""Tensor names and shapes of a torch file (``pytorch_model.bin``), without torch and without running it.

Many published EAGLE heads come in this form alone. The file is a zip whose ``data.pkl`` describes the tensors
and whose other members are their bytes; only the directory and ``data.pkl`` are read. The unpickler knows
exactly the names that a state dict is made of, each as an inert stand-in; any other name ends the reading, so
nothing that a hostile file asks for is ever imported or called.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from checks.facts import Missing
from checks.modelmeta.errors import WeightsBroken
from checks.modelmeta.headers import LFS_POINTER
from checks.modelmeta.meta import TensorInfo
from inventory.errors import EyasError

__all__ = ["read_pickled"]

ReadRange = Callable[[int, int], bytes]
#: A description of some thousand tensors takes well below 1 MB.
PICKLE_LIMIT = 32 << 20
_STORAGES = {
    "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2),
    "DoubleStorage": ("F64", 8), "LongStorage": ("I64", 8), "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1), "ByteStorage": ("U8", 1), "BoolStorage": ("BOOL", 1),
}  # fmt: skip


@dataclass(frozen=True)
class _Tensor:
    storage: tuple[str, int]
    shape: tuple[int, ...]


def read_pickled(file: str, size: int, read: ReadRange) -> Mapping[str, TensorInfo] | Missing:
    """Tensor name to shape, type and bytes; Missing with its reason for what is no plain state dict.

    Raises WeightsBroken for a truncated file or an LFS pointer.
    """
    start = read(0, min(size, 64))
    if start.startswith(LFS_POINTER):
        raise WeightsBroken(
            f"{file} is a Git LFS pointer of {size} bytes, not weights",
            slug="weights-lfs-pointer",
            hint="fetch the file itself: `git lfs pull` in that folder, or download it from the hub",
        )
    if not start.startswith(b"PK"):
        return Missing(f"{file} is not in torch's zip format")
    try:
        content = _unpickle(_description(size, read))
    except zipfile.BadZipFile as e:
        raise WeightsBroken(
            f"{file} is truncated: {e}", slug="weights-truncated", hint="delete it and download it again"
        ) from e
    except EyasError:
        raise
    except Exception as e:  # noqa: BLE001 - a damaged or hostile pickle may raise anything
        return Missing(f"{file} is not a plain state dict: {type(e).__name__}: {e}")
    return _tensors(file, content)


def _description(size: int, read: ReadRange) -> bytes:
    with zipfile.ZipFile(io.BufferedReader(_Ranges(size, read), 1 << 16)) as archive:
        name = next((n for n in archive.namelist() if n.rsplit("/", 1)[-1] == "data.pkl"), None)
        if name is None:
            raise ValueError("it has no data.pkl")
        with archive.open(name) as member:
            raw = member.read(PICKLE_LIMIT + 1)
    if len(raw) > PICKLE_LIMIT:
        raise ValueError("its data.pkl is too large")
    return raw


def _unpickle(raw: bytes) -> Any:
    return _StateDict(io.BytesIO(raw)).load()


def _tensors(file: str, content: Any) -> Mapping[str, TensorInfo] | Missing:
    if not isinstance(content, dict):
        return Missing(f"{file} holds no state dict")
    found = {str(k): v for k, v in content.items() if isinstance(v, _Tensor)}
    if not found:
        return Missing(f"{file} holds no tensors by name")
    return {
        k: TensorInfo(v.storage[0], v.shape, prod(v.shape) * v.storage[1], file) for k, v in found.items()
    }


class _StateDict(pickle.Unpickler):
    """Only the names of a state dict, and each of them stands for nothing but a shape."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module in {"torch", "torch.storage"} and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch._utils" and name in _REBUILD:
            return _REBUILD[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> tuple[str, int]:
        kind, storage, *_ = pid
        if kind != "storage" or storage not in _STORAGES.values():
            raise pickle.UnpicklingError("it refers to something that is no storage")
        return storage  # type: ignore[no-any-return]


def _tensor(storage: tuple[str, int], _offset: int, shape: tuple[int, ...], *_: Any) -> _Tensor:
    return _Tensor(storage, tuple(int(n) for n in shape))


def _parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


_REBUILD: dict[str, Callable[..., _Tensor]] = {
    "_rebuild_tensor": _tensor,
    "_rebuild_tensor_v2": _tensor,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
}


class _Ranges(io.RawIOBase):
    """A seekable file over ranged reads, for `zipfile`."""

    def __init__(self, size: int, read: ReadRange) -> None:
        super().__init__()
        self._size = size
        self._read = read
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        wanted = min(len(buffer), max(0, self._size - self._at))
        got = self._read(self._at, wanted) if wanted else b""
        buffer[: len(got)] = got
        self._at += len(got)
        return len(got)
