"""A deployment as roles: what an engine is told, before anyone spells it.

A role is a name like ``max_model_len``; the catalogue knows its spelling in each release. Which draft
roles a release has decides the dialect: a chain of tokens (vLLM) or steps, top-k and tree size (SGLang).
"""

from dataclasses import dataclass
from typing import Literal, NoReturn

from pydantic import JsonValue

from inventory.catalogue import DraftTp, EngineRelease, load_catalogue
from inventory.errors import UsageError
from inventory.model import METHODS_WITH_MODEL, Deployment, Draft, ModelRef

__all__ = ["FIELDS", "BatchSchedule", "Node", "Roles", "cannot", "distribution", "roles_of", "tree_size"]

Roles = dict[str, JsonValue]

#: Roles that are a deployment's field of another or the same name, in the order argv shows them.
FIELDS: dict[str, str] = {
    "host": "host",
    "port": "port",
    "tensor_parallel": "tensor_parallel",
    "pipeline_parallel": "pipeline_parallel",
    "distributed_executor_backend": "distributed_executor_backend",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "max_model_len": "max_model_len",
    "memory_fraction": "gpu_memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "enforce_eager": "enforce_eager",
    "enable_prefix_caching": "enable_prefix_caching",
    "disable_custom_all_reduce": "disable_custom_all_reduce",
    "trust_remote_code": "trust_remote_code",
}
#: Values every release takes when the role is not given at all.
UNSAID: dict[str, JsonValue] = {
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "enforce_eager": False,
    "disable_custom_all_reduce": False,
    "trust_remote_code": False,
}


@dataclass(frozen=True)
class Node:
    """One machine's place in a deployment over several: its rank and where rank 0 listens."""

    rank: int
    head_address: str
    port: int = 29501
    #: The node's own address and interface on the network that all nodes share.
    address: str = ""
    interface: str = ""


class BatchSchedule:
    """Speculate up to B requests at once, as vLLM's list of (first, last, tokens) ranges."""

    #: The last range must reach beyond every batch; 1024 is the largest default max_num_seqs.
    REACH = 1024

    @classmethod
    def up_to(cls, batch: int, tokens: int, max_num_seqs: int | None) -> list[JsonValue]:
        end = max(cls.REACH, batch + 1, max_num_seqs or 0)
        return [[1, batch, tokens], [batch + 1, end, 0]]

    @staticmethod
    def read(value: JsonValue) -> tuple[int, int] | None:
        """(batch, tokens) when the schedule says just that, else None."""
        match value:
            case [[1, int(batch), int(tokens)], [int(after), int(), 0]] if after == batch + 1:
                return batch, tokens
        return None


def roles_of(
    deployment: Deployment,
    release: EngineRelease,
    *,
    target_path: str | None = None,
    draft_path: str | None = None,
    node: Node | None = None,
) -> Roles:
    """Every role this deployment sets, for this release. Paths replace the models' own names.

    Raises UsageError for a role the release has no spelling for, naming the versions that have one.
    """
    if deployment.engine != release.engine:
        raise UsageError(f"deployment {deployment.name} wants {deployment.engine}, not {release.engine}")
    roles: Roles = _target(deployment.target, target_path)
    roles |= {"served_model_name": _served(deployment, str(roles["model"]))}
    roles |= {role: getattr(deployment, field) for role, field in FIELDS.items()}
    roles |= _device(deployment, release)
    roles |= _nodes(deployment, release, node)
    roles |= _draft(deployment, release, draft_path)
    said: Roles = {r: v for r, v in roles.items() if v is not None and not _goes_without(release, r, v)}
    for role in said:
        if role not in release.flags:
            cannot(release, FIELDS.get(role, role), _rows(release, role))
    return said


def _goes_without(release: EngineRelease, role: str, value: JsonValue) -> bool:
    flag = release.flags.get(role)
    if flag is not None and flag.kind in {"switch", "off"}:
        return value == (flag.kind == "off")
    return role in UNSAID and value == UNSAID[role]


def cannot(release: EngineRelease, what: str, versions: str, why: str = "") -> NoReturn:
    """Raise the error for something a release can't express."""
    other = f"{release.engine} {versions} can" if versions else f"no catalogued {release.engine} can"
    raise UsageError(
        f"{release.engine} {release.version} has no way to say {what}" + (f" ({why})" if why else ""),
        hint=f"{other}; or leave {what} out",
    )


def _rows(release: EngineRelease, role: str) -> str:
    catalogue = load_catalogue()
    rows = [f for f in catalogue.engine(release.engine).flag if f.role == role]
    return catalogue.versions_with(release.engine, rows)


def _target(target: ModelRef, path: str | None) -> Roles:
    roles: Roles = {"model": path or _source(target)}
    if path is None and target.repo and target.revision != "main":
        roles["revision"] = target.revision
    return roles


def _source(model: ModelRef) -> str:
    return model.repo or model.path or model.url or ""


def _served(deployment: Deployment, model: str) -> str | None:
    return deployment.model_name if deployment.model_name != model else None


def _device(deployment: Deployment, release: EngineRelease) -> Roles:
    if deployment.device == "cuda":
        return {}
    if "device" in release.flags:
        return {"device": deployment.device}
    if release.cpu is None:
        catalogue = load_catalogue()
        cannot(
            release,
            f"device {deployment.device}",
            catalogue.versions_with(release.engine, catalogue.engine(release.engine).cpu),
            "no build of it is catalogued",
        )
    return {}


def _nodes(deployment: Deployment, release: EngineRelease, node: Node | None) -> Roles:
    if deployment.nodes == 1:
        return {}
    if distribution(deployment, release) == "ray":
        if "distributed_executor_backend" not in release.flags:
            raise UsageError(
                f"{release.engine} {release.version} spans nodes by itself, not through Ray",
                hint="distributed: native, or leave it out",
            )
        return {"distributed_executor_backend": "ray"}
    if node is None:
        raise UsageError(
            f"deployment {deployment.name} spans {deployment.nodes} nodes: which one is this command for?",
            hint="give a node rank and the address of rank 0",
        )
    roles: Roles = {"nodes": deployment.nodes, "node_rank": node.rank}
    if "master_address_port" in release.flags:
        if "--enable-dp-attention" in deployment.extra_args:
            # sglang.srt.server_args.PortArgs: its processes then listen on the ports after --dist-init-addr.
            raise UsageError(
                "--enable-dp-attention takes the ports after master_port, where the nodes' supervisors meet",
                hint="leave it out of extra_args, or serve on one node",
            )
        return roles | {"master_address_port": f"{node.head_address}:{node.port}"}
    roles |= {"master_address": node.head_address, "master_port": node.port}
    return roles | ({"headless": True} if node.rank else {})


def distribution(deployment: Deployment, release: EngineRelease) -> Literal["native", "ray"]:
    """How the nodes of this deployment work together: the engine's own way where the release has one."""
    if deployment.distributed != "auto":
        return deployment.distributed
    return "native" if "nodes" in release.flags else "ray"


def _draft(deployment: Deployment, release: EngineRelease, path: str | None) -> Roles:
    draft = deployment.draft
    if draft.method == "none":
        return {}
    method = release.methods.get(draft.method)
    if method is None:
        catalogue = load_catalogue()
        rows = [m for m in catalogue.engine(release.engine).method if m.name == draft.method]
        cannot(release, f"draft method {draft.method}", catalogue.versions_with(release.engine, rows))
    roles: Roles = {"draft_method": method.value, "draft_model": method.model_value}
    if draft.model is not None:
        roles["draft_model"] = path or _source(draft.model)
        if path is None and draft.model.repo and draft.model.revision != "main":
            roles["draft_revision"] = draft.model.revision
    _only_ngram(draft)
    roles |= {"prompt_lookup_max": draft.prompt_lookup_max, "prompt_lookup_min": draft.prompt_lookup_min}
    roles |= _tree(draft, release, deployment) if "draft_steps" in release.flags else _chain(draft, release)
    roles |= {"draft_tensor_parallel": _draft_tp(deployment, release)}
    return roles | _batch_limit(deployment, release)


def _only_ngram(draft: Draft) -> None:
    if draft.method != "ngram" and (draft.prompt_lookup_max or draft.prompt_lookup_min):
        raise UsageError(
            f"prompt_lookup_max and _min belong to method ngram, not {draft.method}", hint="leave them out"
        )


def _chain_length(draft: Draft) -> int | None:
    """Tokens of a chain. Beside num_steps, num_speculative_tokens may count the root as SGLang does."""
    steps, tokens = draft.num_steps, draft.num_speculative_tokens
    if steps and tokens and tokens not in {steps, steps + 1}:
        raise UsageError(
            f"num_steps {steps} and num_speculative_tokens {tokens} don't fit: a chain of {steps} steps has "
            f"{steps} tokens ({steps + 1} as SGLang counts)",
            hint="give one of them, or a topk above 1 on SGLang",
        )
    return steps or tokens


def _chain(draft: Draft, release: EngineRelease) -> Roles:
    if draft.topk not in {None, 1}:
        cannot(release, f"topk {draft.topk}", "", "it drafts a chain; trees are SGLang's")
    tokens = _chain_length(draft)
    if tokens is None and (draft.method in METHODS_WITH_MODEL or draft.method == "ngram"):
        raise UsageError(f"method {draft.method} needs num_speculative_tokens", hint="3 to 5 is usual")
    return {"num_speculative_tokens": tokens}


def _tree(draft: Draft, release: EngineRelease, deployment: Deployment) -> Roles:
    """Steps, top-k and tree size: all or none, because the engine asserts on a part of them."""
    if draft.method == "ngram":
        tokens = draft.num_speculative_tokens
        return {"draft_tokens": tokens + 1 if tokens else None}
    topk = draft.topk or 1
    if topk > 1:
        return _wide_tree(draft, release, deployment, topk)
    steps = _chain_length(draft)
    return {"draft_steps": steps, "draft_topk": 1, "draft_tokens": steps + 1} if steps else {}


def _wide_tree(draft: Draft, release: EngineRelease, deployment: Deployment, topk: int) -> Roles:
    steps = draft.num_steps
    if steps is None:
        raise UsageError(f"topk {topk} needs num_steps", hint="5 with topk 4 is SGLang's own for Llama")
    tokens = draft.num_speculative_tokens or tree_size(release, steps, topk)
    largest = 1 + topk + (steps - 1) * topk * topk
    if tokens is None or tokens > largest:
        raise UsageError(
            f"deployment {deployment.name}: num_steps {steps} with topk {topk} needs num_speculative_tokens, "
            f"the tree's size, up to {largest}",
            hint=f"num_speculative_tokens {steps + topk} is a fair start",
        )
    return {"draft_steps": steps, "draft_topk": topk, "draft_tokens": tokens}


def tree_size(release: EngineRelease, steps: int, topk: int) -> int | None:
    """The engine's own tree size for these steps and top-k, where it has one."""
    return next((t.draft_tokens for t in release.trees if (t.steps, t.topk) == (steps, topk)), None)


def _draft_tp(deployment: Deployment, release: EngineRelease) -> int | None:
    draft, target = deployment.draft.tensor_parallel, deployment.tensor_parallel
    rule = release.draft_tp_rule(deployment.draft.method)
    if rule is None:
        return _unruled_tp(deployment, release)
    if rule.rule == "one" and draft is None and target > 1:
        return 1
    if draft is not None and draft not in _allowed(rule, target):
        raise UsageError(
            f"draft tensor_parallel {draft} with {target} ranks: {rule.text} "
            f"({release.engine} {release.version})",
            hint=f"set it to {' or '.join(str(n) for n in sorted(_allowed(rule, target)))}, or leave it out",
        )
    return draft


def _unruled_tp(deployment: Deployment, release: EngineRelease) -> int | None:
    draft = deployment.draft.tensor_parallel
    if draft in {None, deployment.tensor_parallel}:
        return draft if "draft_tensor_parallel" in release.flags else None
    return draft


def _allowed(rule: DraftTp, target: int) -> set[int]:
    return {"one": {1}, "equal": {target}}.get(rule.rule, {1, target})


def _batch_limit(deployment: Deployment, release: EngineRelease) -> Roles:
    draft = deployment.draft
    if draft.max_batch_size is None:
        return {}
    if "tokens_per_batch_size" in release.flags:
        tokens = _chain_length(draft)
        if tokens is None:
            raise UsageError("max_batch_size needs num_speculative_tokens", hint="3 to 5 is usual")
        schedule = BatchSchedule.up_to(draft.max_batch_size, tokens, deployment.max_num_seqs)
        return {"tokens_per_batch_size": schedule}
    if "disable_above_batch" in release.flags:
        return {"disable_above_batch": draft.max_batch_size}
    versions = ", ".join(
        v for r in ("disable_above_batch", "tokens_per_batch_size") if (v := _rows(release, r))
    )
    cannot(release, "draft.max_batch_size", versions)
