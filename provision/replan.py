"""Numbers for a memory fix: the planner's own advice, planned again on the host's real cards."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from checks.doctor.model import Replan
from checks.facts import HostFacts
from checks.outcome import Fix
from inventory.errors import EyasError
from inventory.model import Deployment, Draft, ModelRef

__all__ = ["Config", "deployment_of", "model_config", "replanner"]

#: Causes that a change of sizes mends. Memory that others hold is not among them: theirs is to go first.
SIZES = frozenset(
    {
        "oom-weights-load", "oom-profiling", "oom-kv-allocation", "oom-cuda-graph-capture",
        "oom-sampler-warmup", "oom-spec-draft", "oom-spec-runtime", "oom-runtime",
        "kv-cache-no-memory", "kv-cache-too-small",
    }
)  # fmt: skip
_MOST = 3


@dataclass(frozen=True)
class Config:
    config: Mapping[str, Any]
    tensors: Any = None


def replanner(release: Mapping[str, Any], configs: Mapping[str, Any], facts: HostFacts) -> Replan | None:
    """``replan`` for `Inputs`, or None where the release or its target's config.json could not be read."""
    target, draft = (model_config(configs.get(role)) for role in ("target", "draft"))
    if target is None or not release.get("settings"):
        return None

    def replan(slug: str, _values: Mapping[str, Any]) -> Iterable[Fix]:
        if slug not in SIZES:
            return []
        from checks.planner.advice import advise  # noqa: PLC0415 - few causes need the planner
        from checks.planner.deployment import gpus_of, scenario_of  # noqa: PLC0415

        try:
            scenario = scenario_of(deployment_of(release), target, draft, gpus_of(facts))
            found = advise(scenario, limit=_MOST)
        except (EyasError, ValueError):
            return []
        return [Fix(a.change, a.value, why=f"planned again, it {_outcome(a.plan)}; {a.cost}") for a in found]

    return replan


def _outcome(plan: Any) -> str:
    tokens = f" with {plan.kv_tokens:,} tokens of KV cache" if plan.kv_tokens else ""
    return f"{'fits' if plan.verdict == 'fits' else 'starts, tightly,'}{tokens}"


def model_config(node: Any) -> Config | None:
    return Config(node) if isinstance(node, Mapping) and "missing" not in node and node else None


def deployment_of(release: Mapping[str, Any]) -> Deployment:
    """What a release serves, as the deployment it was made from; its models are the host's folders.

    Raises ValueError (pydantic's) when the release was written by another version and does not read.
    """
    settings = dict(release["settings"])
    weights, spec = release.get("weights") or {}, release.get("draft") or {}
    model = ModelRef(path=weights["draft"]["path"]) if "draft" in weights else None
    tokens = spec.get("num_speculative_tokens")
    draft = Draft(method=spec.get("method") or "none", model=model, num_speculative_tokens=tokens)
    if release.get("api_key_digest"):
        settings["api_key"] = "file:/dev/null"
    target = ModelRef(path=(weights.get("target") or {}).get("path") or "/")
    version = str(release.get("engine_version") or settings.get("engine_version"))
    known = {k: v for k, v in settings.items() if k in Deployment.model_fields}
    return Deployment.model_validate({**known, "engine_version": version, "target": target, "draft": draft})
