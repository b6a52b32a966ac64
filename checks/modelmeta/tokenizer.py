"""A tokenizer's identity from its files: which strings have which ids, in which order they merge."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from checks.facts import Missing
from checks.modelmeta.meta import TokenizerInfo

__all__ = ["read_tokenizer"]

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")

ReadFile = Callable[[str], bytes | None]


def read_tokenizer(read: ReadFile) -> TokenizerInfo | Missing:
    """From tokenizer.json, else vocab.json + merges.txt, else a hash of tokenizer.model; never raises."""
    settings = _object(read("tokenizer_config.json")) or {}
    template = _template(settings, read("chat_template.jinja"))
    special = {k: _text(settings[k]) for k in _SPECIAL if settings.get(k)}
    fast = _object(read("tokenizer.json"))
    if fast is not None:
        return _from_fast(fast, special, template)
    vocab, merges = _object(read("vocab.json")), read("merges.txt")
    if vocab is not None:
        digest = _digest({"vocab": vocab, "merges": (merges or b"").decode("utf-8", "replace").split("\n")})
        return TokenizerInfo(len(vocab), digest, {}, special, template, "vocab.json", vocab)
    for name in ("tokenizer.model", "tiktoken.model", "tekken.json"):
        raw = read(name)
        if raw is not None:
            return TokenizerInfo(None, hashlib.sha256(raw).hexdigest(), {}, special, template, name)
    return Missing("no tokenizer files")


def _from_fast(
    fast: Mapping[str, Any], special: dict[str, str], template: str | None
) -> TokenizerInfo | Missing:
    model = fast.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        return Missing("tokenizer.json has no model.vocab")
    entries = fast.get("added_tokens") or []
    added = {
        str(t["content"]): int(t["id"])
        for t in entries
        if isinstance(t, dict) and "content" in t and isinstance(t.get("id"), int)
    }
    vocab = model["vocab"]
    ids = vocab if isinstance(vocab, dict) else {str(v[0]): i for i, v in enumerate(vocab) if v}
    ids = {**ids, **added}
    merges = [m if isinstance(m, str) else " ".join(map(str, m)) for m in model.get("merges") or []]
    digest = _digest({"vocab": vocab, "merges": merges})
    return TokenizerInfo(len(ids), digest, added, special, template, "tokenizer.json", ids)


def _template(settings: Mapping[str, Any], file: bytes | None) -> str | None:
    found = file.decode("utf-8", "replace") if file is not None else settings.get("chat_template")
    return _digest(found) if found else None


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _object(raw: bytes | None) -> dict[str, Any] | None:
    try:
        decoded = json.loads(raw) if raw is not None else None
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _digest(value: Any) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
    ).hexdigest()
