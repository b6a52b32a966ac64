"""A start, phase by phase, with the log lines that a planner reads and every way it can end early."""

import glob
import json
import os
import time
from typing import Any

from .say import Log
from .settings import Settings

__all__ = ["StartFailed", "run"]


class StartFailed(Exception):
    """``str`` is the root cause in the engine's words."""


_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of %.2f GiB "
    "of which %.2f MiB is free. Including non-PyTorch memory, this process has %.2f GiB memory in use. Of the "
    "allocated memory %.2f GiB is allocated by PyTorch, and 41.52 MiB is reserved by PyTorch but unallocated."
)
_TEXTS = {
    "old-driver": "RuntimeError: The NVIDIA driver on your system is too old (found version 12060). Please update "
    "your GPU driver by downloading and installing a new version from the URL: "
    "http://www.nvidia.com/Download/index.aspx",
    "wrong-head": "RuntimeError: The size of tensor a (4096) must match the size of tensor b (3584) at "
    "non-singleton dimension 1",
    "truncated-weights": "safetensors_rust.SafetensorError: Error while deserializing header: incomplete "
    "metadata, file not fully covered",
    "oom-sampler": "RuntimeError: CUDA out of memory occurred when warming up sampler with %(seqs)d dummy "
    "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
    "nccl": "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
}


def run(log: Log, values: dict[str, Any], configs: tuple[dict[str, Any], dict[str, Any]], now: Settings) -> int:
    """Go through a start; return the KV cache's size in tokens. Raises StartFailed."""
    spec, length = values.get("spec") or {}, values.get("max_model_len") or 4096
    share = now.memory_gib * values.get("gpu_memory_utilization", 0.92)
    weights = _loading(log, values, configs, now)
    _pause(now, 0.2)
    log.info("model_runner.py:302", "Model loading took %.2f GiB and %.6f seconds" % (weights, now.start_s * 0.5))
    _reach(now, values, "oom-profile")
    _pause(now, 0.15)
    free = max(0.5, share - weights - 1.5)
    log.info("gpu_worker.py:538", "Available KV cache memory: %.2f GiB" % free)
    if now.fault == "kv-too-small":
        text = (
            "ValueError: To serve at least one request with the model's max seq len (%d), (%.2f GiB KV cache is needed, "
            "which is larger than the available KV cache memory (%.2f GiB). Based on the available memory, the estimated "
            "maximum model length is %d. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine."
        )
        raise StartFailed(text % (length, free * 2, free, max(16, length // 2)))
    tokens = int(free * 2**30 / _kv_bytes(*configs)) // 16 * 16
    sizes = "{:,} tokens, Maximum concurrency for {:,} tokens per request: {:.2f}x"
    log.info("kv_cache_utils.py:2327", "GPU KV cache size: " + sizes.format(tokens, length, tokens / length))
    _reach(now, values, "oom-kv")
    if not values.get("enforce_eager"):
        _reach(now, values, "oom-graphs")
        _pause(now, 0.1)
        log.info("model_runner.py:722", "Graph capturing finished in %d secs, took 0.89 GiB" % (now.start_s * 0.1))
    if spec:
        log.info("speculator.py:90", "Capturing model for speculator...")
        _reach(now, values, "oom-speculative")
    _reach(now, values, "oom-sampler")
    if now.fault == "stuck-start":
        time.sleep(86400)
    _pause(now, 0.05)
    log.info("core.py:402", "init engine (profile, create kv cache, warmup model) took %.2f s" % (now.start_s * 0.3))
    return tokens


def _loading(
    log: Log, values: dict[str, Any], configs: tuple[dict[str, Any], dict[str, Any]], now: Settings
) -> float:
    """Weights of target and draft in GiB, looked at as the real loader would, and not loaded."""
    spec, (target, draft) = values.get("spec") or {}, configs
    _reach(now, values, "old-driver")
    world = values.get("tensor_parallel", 1)
    log.info("parallel_state.py:1906", "world_size=%d rank=0 local_rank=0 backend=nccl" % world)
    _reach(now, values, "nccl")
    if now.fault == "memory-taken":
        wanted = values.get("gpu_memory_utilization", 0.92)
        text = (
            "ValueError: Free memory on device cuda:0 (%.2f/%.2f GiB) on startup is less than desired GPU memory "
            "utilization (%s, %.2f GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        )
        total = now.memory_gib
        raise StartFailed(text % (total * 0.4, total, wanted, total * wanted))
    _pause(now, 0.3)
    log.info("model_runner.py:281", "Loading model from scratch...")
    _reach(now, values, "oom-weights")
    size = _weights(values.get("model_tag") or values.get("target", ""))
    _pause(now, 0.2)
    if spec.get("model"):
        log.info("cpu_model_runner.py:75", "Loading drafter model...")
        size += _weights(spec["model"])
        a, b = draft.get("hidden_size"), target.get("hidden_size")
        if str(spec.get("method", "")).startswith("eagle") and a and b and a != b:
            text = "RuntimeError: The size of tensor a (%d) must match the size of tensor b (%d) at non-singleton dimension 1"
            raise StartFailed(text % (a, b))
    _reach(now, values, "wrong-head")
    _reach(now, values, "truncated-weights")
    return size / 2**30 / world


def _weights(model: str) -> int:
    """Bytes of a folder's safetensors; a hub id has none here."""
    if not os.path.isdir(model):
        return 0
    files = sorted(glob.glob(os.path.join(model, "*.safetensors")))
    if not files:
        raise StartFailed("RuntimeError: Cannot find any model weights with `%s`" % model)
    return sum(_checked(path) for path in files)


def _checked(path: str) -> int:
    size = os.path.getsize(path)
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < size else None
        ends = [t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"] if header else [size]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError
    except PermissionError as e:
        # The real loader says this of a file that it may not read.
        raise StartFailed("FileNotFoundError: No such file or directory: %s" % path) from e
    except ValueError as e:
        raise StartFailed(_TEXTS["truncated-weights"]) from e
    return size


def _kv_bytes(target: dict[str, Any], draft: dict[str, Any]) -> int:
    """Bytes of one token's keys and values over all layers of target and draft (16-bit)."""
    total = 0
    for config in (target, draft):
        heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 0
        width = config.get("head_dim") or config.get("hidden_size", 0) // max(1, config.get("num_attention_heads", 1))
        total += 2 * 2 * heads * width * config.get("num_hidden_layers", 0)
    return total or 131072


def _reach(now: Settings, values: dict[str, Any], fault: str) -> None:
    if now.fault != fault:
        return
    if fault in _TEXTS:
        raise StartFailed(_TEXTS[fault].replace("%(seqs)d", str(values.get("max_num_seqs", 256))))
    asked = {"oom-kv": "4.64 GiB", "oom-profile": "1.16 GiB", "oom-speculative": "1.45 GiB"}.get(fault, "270.00 MiB")
    used = now.memory_gib - 0.19
    raise StartFailed(_OOM % (asked, now.memory_gib, 193.56, used, used - 0.6))


def _pause(now: Settings, share: float) -> None:
    time.sleep(now.start_s * share)
