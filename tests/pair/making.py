"""Small real model folders: configurations, tokenizers and safetensors files of true shapes.

Shapes are those of a 4-layer Llama (hidden 256, 4 heads, 2 KV heads, vocabulary 448) and of the EAGLE,
EAGLE-3 and small-model drafts that vLLM 0.32.0 served for it on a CPU. Tensor data are holes in the file.
"""

import io
import json
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

Shapes = dict[str, tuple[int, ...]]
ITEM = {"F32": 4, "BF16": 2, "I64": 8, "BOOL": 1}

TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 448,
    "max_position_embeddings": 2048,
}
SMALL = TARGET | {"num_hidden_layers": 1}
EAGLE3 = SMALL | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": 448,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
}


def layer(prefix: str, *, inputs: int = 256, hidden: int = 256) -> Shapes:
    return {
        f"{prefix}.self_attn.q_proj.weight": (256, inputs),
        f"{prefix}.self_attn.k_proj.weight": (128, inputs),
        f"{prefix}.self_attn.v_proj.weight": (128, inputs),
        f"{prefix}.self_attn.o_proj.weight": (hidden, 256),
        f"{prefix}.mlp.gate_proj.weight": (512, hidden),
        f"{prefix}.mlp.up_proj.weight": (512, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, 512),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
    }


EAGLE_TENSORS: Shapes = {"embed_tokens.weight": (448, 256), "fc.weight": (256, 512), **layer("layers.0")}
EAGLE3_TENSORS: Shapes = {
    "fc.weight": (256, 768),
    **layer("midlayer", inputs=512),
    "midlayer.input_layernorm.weight": (256,),
    "midlayer.hidden_norm.weight": (256,),
    "norm.weight": (256,),
    "lm_head.weight": (448, 256),
}
SMALL_TENSORS: Shapes = {
    "model.embed_tokens.weight": (448, 256),
    **layer("model.layers.0"),
    "model.layers.0.input_layernorm.weight": (256,),
    "model.norm.weight": (256,),
    "lm_head.weight": (448, 256),
}
BASES: dict[str, tuple[dict[str, Any], Shapes]] = {
    "target": (TARGET, SMALL_TENSORS),
    "eagle": (SMALL, EAGLE_TENSORS),
    "eagle3": (EAGLE3, EAGLE3_TENSORS),
    "draft_model": (SMALL, SMALL_TENSORS),
}


def header(shapes: Mapping[str, tuple[int, ...]], dtype: str = "F32") -> bytes:
    """A safetensors header for these tensors, laid out one after the other."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = prod(shape) * ITEM[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw


def write_safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str = "F32") -> None:
    head = header(shapes, dtype)
    with path.open("wb") as f:
        f.write(head)
        f.truncate(len(head) + sum(prod(s) for s in shapes.values()) * ITEM[dtype])


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def tokenizer(words: int = 448, *, shift: int = 0) -> dict[str, Any]:
    vocab = {f"w{n}": (n + shift) % words for n in range(words)}
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": ["w 1", "w 2"]},
        "added_tokens": [{"id": 0, "content": f"w{(-shift) % words}"}],
    }


def make(
    folder: Path,
    base: str = "target",
    *,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[int, ...] | None] | None = None,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """A model folder: the base with keys and tensors replaced; None takes one away."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, shapes = BASES[base]
    merged = {k: v for k, v in (plain | dict(config or {})).items() if v is not None}
    write_json(folder / "config.json", merged)
    kept: Shapes = {k: v for k, v in (dict(shapes) | dict(tensors or {})).items() if v is not None}
    if kept:
        write_safetensors(folder / "model.safetensors", kept)
    for name, value in (files or {}).items():
        write_json(folder / name, value)
    return folder


class Storage:
    """What a torch file refers to outside its pickle."""


def write_torch(path: Path, shapes: Mapping[str, tuple[int, ...]], *, extra: Any = None) -> None:
    """A torch zip file with these tensors, written without torch: the pickle and no tensor bytes."""
    names = {"torch": types.ModuleType("torch"), "torch._utils": types.ModuleType("torch._utils")}
    half = type("HalfStorage", (), {"__module__": "torch"})

    def rebuild(*_: Any) -> None: ...

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    names["torch"].HalfStorage = half  # type: ignore[attr-defined]
    names["torch._utils"]._rebuild_tensor_v2 = rebuild  # type: ignore[attr-defined]

    class Tensor:
        def __init__(self, shape: tuple[int, ...]) -> None:
            self.shape = shape

        def __reduce__(self) -> tuple[Any, ...]:
            return rebuild, (Storage(), 0, self.shape, (1,) * len(self.shape), False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            return ("storage", half, "0", "cpu", 1) if isinstance(thing, Storage) else None

    out = io.BytesIO()
    with mock.patch.dict(sys.modules, names):
        Pickler(out, protocol=2).dump(
            OrderedDict((k, Tensor(v)) for k, v in shapes.items()) if extra is None else extra
        )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", out.getvalue())
        archive.writestr("archive/data/0", b"\0" * 64)
