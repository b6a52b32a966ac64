"""`bench --apply`: the verdict as values of the deployment's file; comments and all else stay."""

from typing import Any

from checks.bench.model import Verdict
from inventory.catalogue import load_catalogue
from inventory.errors import ChangeFailed, CheckRefused
from inventory.load import deployment_for, find_deployment
from inventory.model import Deployment, Host
from inventory.yamlfile import parse_yaml, read_text
from provision.edit import set_value
from provision.localfile import replace_text

__all__ = ["apply_verdict", "wanted_values"]

_HINT = "copy the deployment to inventory/deployments first"
_LIMITS = ("tokens_per_batch_size", "disable_above_batch")


def apply_verdict(host: Host, named: str | None, verdict: Verdict, engine_version: str = "") -> list[str]:
    """Write it; what to tell. Raises CheckRefused where the file can't say it or nothing is certain."""
    name = named or str(host.vars.get("eyas_deployment") or "")
    before = deployment_for(host, name)
    values, notes = wanted_values(before, verdict, engine_version)
    path = find_deployment(name)
    original = text = read_text(path)
    changed = []
    for key, value in values.items():
        now = getattr(before.draft, key)
        if now != value:
            text = set_value(parse_yaml(text, path), text, ("draft", key), value)
            changed.append(f"{path}: draft.{key}: {now} -> {value}")
    if not changed:
        return [f"{path}: already so", *notes]
    replace_text(path, text, hint=_HINT)
    after = deployment_for(host, name).draft
    if any(getattr(after, key) != value for key, value in values.items()):
        replace_text(path, original, hint=_HINT)
        raise ChangeFailed(
            f"{', '.join(values)} of draft is overridden for this host",
            hint="change eyas_overrides in the inventory",
            host=host.name,
        )
    return [*changed, *notes, f"next: invoke provision --host {host.name}"]


def wanted_values(d: Deployment, verdict: Verdict, engine_version: str) -> tuple[dict[str, Any], list[str]]:
    """Keys of ``draft`` with their values, and notes on what this engine version can't be told."""
    if not verdict.certain:
        raise CheckRefused(f"nothing is written: {verdict.text}", hint="more repeats: --repeats 30")
    if verdict.strategy != d.draft.method:
        raise CheckRefused(
            f"the verdict is {verdict.strategy}, the file says {d.draft.method}: that is yours to write",
            hint=f"set draft.method (and draft.model) of {d.name}, provision, and bench again",
        )
    values: dict[str, Any] = {}
    notes: list[str] = []
    if verdict.num_speculative_tokens:
        values["num_speculative_tokens"] = verdict.num_speculative_tokens
    if verdict.off_above:
        if _can_limit(d, engine_version):
            values["max_batch_size"] = verdict.off_above
        else:
            notes.append(
                f"{d.engine} {engine_version or d.engine_version} can't turn speculation off by itself:"
                f" keep at most {verdict.off_above} requests at once on this box"
            )
    return values, notes


def _can_limit(d: Deployment, engine_version: str) -> bool:
    version = engine_version or d.engine_version
    if version == "auto":
        return False
    return any(role in load_catalogue().release(d.engine, version).flags for role in _LIMITS)
