"""A start, phase by phase, with the log lines that a planner reads and every way it can end early."""

import json
import os
import time
from pathlib import Path
from typing import Any

from .say import Log
from .settings import Settings
from .texts import text

__all__ = ["StartFailed", "run"]

Config = dict[str, Any]
#: Shares of a start's length: before the weights, loading, profiling, graphs, warm-up.
_BEFORE, _LOADING, _PROFILING, _GRAPHS, _WARMUP = 0.3, 0.4, 0.15, 0.1, 0.05


class StartFailed(Exception):
    """``str`` is the root cause in the engine's words; ``frame`` the line of code it came from, or ""."""

    def __init__(self, name: str, frame: str = "", **values: Any) -> None:
        super().__init__(text("start", name, **values))
        self.frame = frame

    @property
    def traceback(self) -> str:
        """As it is printed."""
        frames = f"  {self.frame}\n" if self.frame else ""
        return f"Traceback (most recent call last):\n{frames}{self}"


class _Start:
    def __init__(self, log: Log, values: dict[str, Any], now: Settings) -> None:
        self.log, self.values, self.now = log, values, now
        self.share = float(values.get("memory_fraction") or 0.92)

    def pause(self, part: float) -> None:
        time.sleep(self.now.start_s * part)

    def reach(self, fault: str) -> None:
        """The point of a start at which this fault shows."""
        total = self.now.memory_gib
        if self.now.fault != fault:
            return
        if fault.startswith("oom-") and fault != "oom-sampler":
            used: dict[str, Any] = {"total": total, "used": total - 0.19, "allocated": total - 0.8}
            raise StartFailed("out-of-memory", text("frames", fault), asked=text("asked", fault), **used)
        memory: dict[str, Any] = {
            "free": total * 0.4,
            "total": total,
            "share": self.share,
            "wanted": total * self.share,
        }
        raise StartFailed(fault, **memory, seqs=self.values.get("max_num_seqs", 256), a=4096, b=3584)


def run(log: Log, values: dict[str, Any], configs: tuple[Config, Config], now: Settings) -> int:
    """Go through a start; return the KV cache's size in tokens. Raises StartFailed."""
    start = _Start(log, values, now)
    weights = _load(start, configs)
    log.note("model_runner.py:302", text("log", "loaded", gib=weights, seconds=now.start_s * _LOADING))
    if not values.get("enforce_eager"):
        _compiled()
    start.reach("oom-profile")
    start.pause(_PROFILING)
    tokens = _cache(start, configs, max(0.5, now.memory_gib * start.share - weights - 1.5))
    if not values.get("enforce_eager"):
        start.reach("oom-graphs")
        start.pause(_GRAPHS)
        log.note("model_runner.py:722", text("log", "graphs", seconds=now.start_s * _GRAPHS))
    if values.get("spec"):
        log.note("speculator.py:90", "Capturing model for speculator...")
        start.reach("oom-speculative")
    start.reach("oom-sampler")
    if now.fault == "stuck-start":
        time.sleep(86400)
    start.pause(_WARMUP)
    log.note(
        "core.py:402", text("log", "initialized", seconds=now.start_s * (_PROFILING + _GRAPHS + _WARMUP))
    )
    return tokens


def _cache(start: _Start, configs: tuple[Config, Config], free_gib: float) -> int:
    length = start.values["length"]
    start.log.note("gpu_worker.py:538", text("log", "kv-free", gib=free_gib))
    if start.now.fault == "kv-too-small":
        raise StartFailed(
            "kv-too-small", length=length, needed=2 * free_gib, free=free_gib, fitting=max(16, length // 2)
        )
    tokens = int(free_gib * 2**30 / _bytes_per_token(*configs)) // 16 * 16
    size = text("log", "kv-size", tokens=tokens, length=length, times=tokens / length)
    start.log.note("kv_cache_utils.py:2327", size)
    start.reach("oom-kv")
    return tokens


def _load(start: _Start, configs: tuple[Config, Config]) -> float:
    """Weights of target and draft in GiB a card, looked at as the real loader would, and not loaded."""
    values, spec, (target, draft) = start.values, start.values.get("spec") or {}, configs
    world = values.get("tensor_parallel", 1)
    start.reach("old-driver")
    start.log.note("parallel_state.py:1906", f"world_size={world} rank=0 local_rank=0 backend=nccl")
    start.reach("nccl")
    start.reach("memory-taken")
    start.pause(_BEFORE)
    start.log.note("model_runner.py:281", "Loading model from scratch...")
    start.reach("oom-weights")
    start.pause(_LOADING)
    size = _weights(values["model"])
    if spec.get("model"):
        start.log.note("cpu_model_runner.py:75", "Loading drafter model...")
        size += _weights(spec["model"])
        a, b = draft.get("hidden_size"), target.get("hidden_size")
        if str(spec.get("method")).startswith("eagle") and a and b and a != b:
            raise StartFailed("wrong-head", a=a, b=b)
    start.reach("wrong-head")
    start.reach("truncated-weights")
    return float(size / 2**30 / world)


def _compiled() -> None:
    """What a start keeps for the next one, as the real one does below the service's cache folder."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        folder = Path(home) / "vllm" / "torch_compile_cache"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "standin.bin").write_bytes(bytes(1 << 16))
        except OSError as e:
            raise StartFailed("cache", said=f"{type(e).__name__}: {e}") from e


def _weights(model: str) -> int:
    """Bytes of a folder's safetensors; a hub id has none here."""
    folder = Path(model)
    if not folder.is_dir():
        return 0
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise StartFailed("no-weights", path=model)
    return sum(_checked(path) for path in files)


def _checked(path: Path) -> int:
    try:
        size = path.stat().st_size
        whole = size == _expected(path, size)
    except PermissionError as e:
        # The real loader says this of a file that it may not read.
        raise StartFailed("unreadable-weights", path=path) from e
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise StartFailed("truncated-weights")
    return size


def _expected(path: Path, size: int) -> int:
    """A safetensors file's length by its own header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size:
            return -1
        tensors: dict[str, Any] = json.loads(file.read(length))
    ends = [t["data_offsets"][1] for name, t in tensors.items() if name != "__metadata__"]
    return 8 + length + int(max(ends, default=0))


def _bytes_per_token(target: Config, draft: Config) -> int:
    """Keys and values of one token over all layers of target and draft, at 16 bits."""
    total = 0
    for config in (target, draft):
        heads = config.get("num_attention_heads") or 1
        width = config.get("head_dim") or config.get("hidden_size", 0) // heads
        total += 4 * (config.get("num_key_value_heads") or heads) * width * config.get("num_hidden_layers", 0)
    return total or 131072
