"""A driver for pynvml made of Python callables: pynvml, its structs and its errors stay the real ones."""

import ctypes
from collections.abc import Callable
from typing import Any

NOT_SUPPORTED, LOST = 3, 15


class FakeLibrary:
    """``values`` maps "0.SYMBOL" or "SYMBOL" to what the out parameters get, an int error as ``Fail(code)``.

    A symbol that is in ``absent`` is not exported, as in an old driver. Anything else: not supported.
    """

    def __init__(self, values: dict[str, Any], absent: tuple[str, ...] = ()) -> None:
        self.values = values
        self.absent = absent
        self.handles: dict[int, int] = {}

    def __getattr__(self, symbol: str) -> Callable[..., int]:
        if symbol.startswith("__") or symbol in self.absent:
            raise AttributeError(symbol)
        return lambda *args: self._call(symbol, *args)

    def _call(self, symbol: str, *args: Any) -> int:
        if symbol in {"nvmlInitWithFlags", "nvmlShutdown"}:
            return int(self.values.get(symbol, 0))
        if symbol == "nvmlDeviceGetHandleByIndex_v2":
            return self._handle(*args)
        key = symbol
        if args and isinstance(args[0], ctypes._Pointer):
            key = f"{ctypes.cast(args[0], ctypes.c_void_p).value or 0:d}.{symbol}"
        value = self.values.get(key, Fail(NOT_SUPPORTED))
        if isinstance(value, Fail):
            return value.code
        return _fill(args, value)

    def _handle(self, index: Any, out: Any) -> int:
        number = getattr(index, "value", index)
        if f"{number}.lost" in self.values:
            return LOST
        pointer = type(out._obj)
        ctypes.memmove(ctypes.byref(out._obj), ctypes.byref(ctypes.c_void_p(number)), ctypes.sizeof(pointer))
        return 0


class Fail:
    def __init__(self, code: int) -> None:
        self.code = code


def _fill(args: tuple[Any, ...], value: Any) -> int:
    """Put text into a buffer, a dict into a struct, numbers into the out parameters in their order."""
    if isinstance(value, str):
        buffer = next(a for a in args if isinstance(a, ctypes.Array))
        buffer.value = value.encode()
        return 0
    outs = [a._obj for a in args if hasattr(a, "_obj")]
    if isinstance(value, dict):
        for name, field in value.items():
            setattr(outs[-1], name, field)
        return 0
    for out, number in zip(outs, value if isinstance(value, tuple) else (value,), strict=False):
        out.value = number
    return 0
