"""What stands around a command: its environment, and the secrets that must not come along."""

import re

from inventory.command import SECRET_FLAGS
from inventory.snippet import Command
from inventory.work import Work

__all__ = ["take_environment", "take_secrets"]

#: Variables an engine or a library under it reads; others in a snippet are the author's own.
_ENGINE_ENV = re.compile(
    r"(VLLM|SGLANG|SGL|CUDA|NCCL|HF|HUGGINGFACE|TORCH|PYTORCH|TRITON|OMP|MKL|FLASHINFER|GLOO|UCX|RAY|"
    r"TOKENIZERS|TRANSFORMERS|NVIDIA|LD)_.+|DO_NOT_TRACK"
)
_SECRET_NAME = re.compile(r".*(TOKEN|KEY|SECRET|PASSWORD)")
_HUB_TOKEN = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "--hf-token"})


def take_secrets(work: Work, command: Command) -> None:
    """Keys and tokens leave the text here; only references go on."""
    for item in [u for u in work.unknown if u.flag in SECRET_FLAGS]:
        work.unknown.remove(item)
        _secret(work, item.flag)
    for name in command.env:
        if _SECRET_NAME.fullmatch(name):
            _secret(work, name)


def _secret(work: Work, name: str) -> None:
    field, variable = ("hub_token", "HF_TOKEN") if name in _HUB_TOKEN else ("api_key", "EYAS_API_KEY")
    work.want[field] = f"env:{variable}"
    work.note(
        "other",
        name,
        f"a secret is not written down: set {variable} where eyas runs ({field}: env:{variable})",
    )


def take_environment(work: Work, command: Command) -> None:
    env: dict[str, str] = {}
    for name, value in command.env.items():
        gone = next((r for r in work.source.retired_env if r.name == name), None)
        if _SECRET_NAME.fullmatch(name):
            continue
        if not _ENGINE_ENV.fullmatch(name):
            continue
        if gone and work.same_engine and not gone.holds(work.version):
            work.note("renamed" if gone.becomes else "removed", name, gone.text)
            work.added += [part.replace("{value}", value) for part in gone.becomes]
        elif not value.strip() or "\n" in value:
            work.note("other", name, "no value of one line: left out (an empty one crashes engine workers)")
        elif not work.same_engine and name.startswith(work.source.engine.upper()):
            work.note("removed", name, f"{work.source.engine} reads it, {work.release.engine} does not")
        else:
            env[name] = value
    if env:
        work.want["env"] = env
