"""Whether a model and its draft fit each other and the cards, from metadata alone."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Context

from surface.commandline import ROOT, command
from surface.options import select

if TYPE_CHECKING:  # a task loads what it uses
    from checks import modelmeta
    from inventory.model import ModelRef


@command(
    name="check-pair",
    help={
        "target": "The model to serve: hub repository (owner/name[@revision]), folder, or a mirror's URL.",
        "draft": "The head or small model that drafts for it, given the same way.",
        "engine": "vllm or sglang.",
        "engine-version": "Version to judge for; default: the newest known.",
        "tensor-parallel": "Cards that the target is split over.",
        "draft-tensor-parallel": "Cards that the draft is split over, if it is to be given.",
        "pipeline-parallel": "Pipeline stages.",
        "max-model-len": "Longest request in tokens; default: what the target was made for.",
        "method": "eagle, eagle3, draft_model, mtp; default: what the draft's files are.",
        "endpoint": "A hub other than the public one.",
        "json": "Print one JSON document.",
    },
)
def check_pair(
    c: Context,
    target: str = "",
    draft: str = "",
    engine: str = "vllm",
    engine_version: str = "auto",
    tensor_parallel: str = "1",
    draft_tensor_parallel: str = "",
    pipeline_parallel: str = "1",
    max_model_len: str = "",
    method: str = "",
    endpoint: str = "",
    json: bool = False,
) -> int:
    """Does this draft fit this target? Answered from metadata alone; no weights are downloaded.

    Exit code 0: it fits, perhaps with a warning; 4: refused, or not on the hub; 3: nobody could look.
    """
    from checks import modelmeta, pairgate
    from checks.pairgate.report import show

    want = pairgate.want_from(
        engine=engine,
        version=engine_version,
        method=method,
        tensor_parallel=tensor_parallel,
        draft_tensor_parallel=draft_tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        max_model_len=max_model_len,
    )
    verdict = pairgate.judge(
        modelmeta.model_ref(target, "--target"),
        modelmeta.model_ref(draft, "--draft"),
        want,
        endpoint=endpoint or os.environ.get("HF_ENDPOINT"),
        token=modelmeta.hub_token(),
    )
    show(verdict, target, draft, want, as_json=json)
    return 4 if verdict.verdict == "refuse" else 0


@command(
    help={
        "deployment": "Name or file of the deployment. With --host: default the host's own.",
        "host": "Ansible pattern: look at these hosts and plan for their cards.",
        "inventory": "An Ansible inventory, YAML or INI. Default: inventory/hosts.yml or .ini.",
        "facts": "A saved probe of a host instead (`facts --save`).",
        "gpu": 'A card instead of a host, like "RTX 4090".',
        "gpus": "How many of that card.",
        "max-model-len": "Another length, or auto: the longest that fits.",
        "concurrency": "With --context: do so many requests run at once?",
        "context": "With --concurrency: tokens of each, prompt and answer.",
        "cards": "Also list the cards that would do.",
        "log": "Log of a start of this deployment: its numbers replace the estimates.",
        "used-mib": "With or without --log: what nvidia-smi shows in use on one GPU after that start.",
        "scenario": "A JSON file with one start's inputs: device_total_gib, model_config, ...",
        "truth": "Compare with real starts instead and print the errors.",
        "rows": "With --truth: a file of measured starts (default: this project's own).",
        "endpoint": "A hub other than the public one.",
        "accept-new-host-keys": "Record the keys of hosts that known_hosts doesn't have yet.",
        "json": "Print one JSON document.",
    },
)
def plan(
    c: Context,
    deployment: str = "",
    host: str | None = None,
    inventory: str | None = None,
    facts: str = "",
    gpu: str = "",
    gpus: str = "1",
    max_model_len: str = "",
    concurrency: str = "",
    context: str = "",
    cards: bool = False,
    log: str = "",
    used_mib: str = "",
    scenario: str = "",
    truth: bool = False,
    rows: str = "",
    endpoint: str = "",
    accept_new_host_keys: bool = False,
    json: bool = False,
) -> int:
    """What a start takes on each GPU, whether it fits, and the cheapest changes when it doesn't.

    Answered from metadata alone, without a GPU. Exit code 0: it starts; 4: it doesn't; 3: nobody could look.
    """
    from checks import modelmeta
    from checks.planner import surface
    from inventory.load import load_deployment

    if truth:
        return surface.truth(Path(rows) if rows else ROOT / "tests/data/h200/measurements.json", as_json=json)
    ask = surface.Ask.parse(
        max_model_len=max_model_len,
        concurrency=concurrency,
        context=context,
        cards=cards,
        log=log,
        used_mib=used_mib,
    )
    if scenario:
        return surface.scenario(scenario, ask, as_json=json)
    hub = endpoint or os.environ.get("HF_ENDPOINT")

    def load(ref: "ModelRef") -> "modelmeta.ModelMeta":
        return modelmeta.load_model_meta(ref, endpoint=hub, token=modelmeta.hub_token(), tokenizer=False)

    if host is not None:
        from provision import planning, run

        flags = run.Flags(accept_new_host_keys=accept_new_host_keys, as_json=json)
        return planning.plan_hosts(select(host, inventory), deployment or None, ask, load, flags)
    found = surface.gpus_from(gpu=gpu, count=gpus, facts=surface.load_facts(facts) if facts else None)
    return surface.deployment(load_deployment(deployment), found, ask, load, as_json=json)
