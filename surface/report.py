"""For people who decide: the fleet as one page, and which way of serving fits."""

import os
from typing import TYPE_CHECKING

from invoke import Context

from inventory.defaults import FORKS
from inventory.errors import UsageError
from surface.commandline import command
from surface.options import LIMIT, select

if TYPE_CHECKING:  # a task loads what it uses
    from checks import modelmeta
    from inventory.model import Host, ModelRef


@command(
    help={
        **LIMIT,
        "limit": "Ansible pattern: ask these hosts now.",
        "from": "Folder of documents that --json wrote: status, doctor, drift, facts, plan, bench.",
        "out": "The page to write, one HTML file that needs no network.",
        "json": "The same data as one JSON document on stdout.",
    }
)
def report(
    c: Context,
    limit: str | None = None,
    inventory: str | None = None,
    from_: str = "",
    out: str = "",
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """The fleet as one HTML page: state, findings with fixes, GPU memory, throughput, acceptance, trends.

    From live hosts (--limit), saved documents (--from), or both. Exit 0: clean, 4: errors, 3: a host was
    not reached; the page is written all the same.
    """
    from provision import reporting, run

    if not out:
        raise UsageError("no file to write", hint="--out report.html")
    if limit is None and not from_:
        raise UsageError(
            "nothing to report on", hint="--limit PATTERN for live hosts, --from FOLDER for saved ones"
        )
    hosts: list[Host] = select(limit, inventory, "--limit") if limit is not None else []
    flags = run.Flags(accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    return reporting.report(hosts, flags, folder=from_, out=out, scope=limit or "")


@command(
    help={
        "model": "The model to serve: hub repository (owner/name[@revision]), folder, or a mirror's URL.",
        "gpus": 'The cards of one host, like "4x RTX 4090".',
        "users": "So many, counted as that many requests at once.",
        "use": "coding-agent, chat, sql or rag: what is assumed of lengths and acceptance.",
        "context": "Tokens of one request with its answer. Default: the use's.",
        "engine": "vllm (default) or sglang.",
        "benches": "Folder of further results of `invoke bench --json`; those made from here count anyway.",
        "write": "Also write it as a deployment of this name, inventory/deployments/NAME.yml.",
        "endpoint": "A hub other than the public one.",
        "json": "One JSON document.",
    }
)
def advise(
    c: Context,
    model: str = "",
    gpus: str = "",
    users: str = "",
    use: str = "",
    context: str = "",
    engine: str = "",
    benches: str = "",
    write: str = "",
    endpoint: str = "",
    json: bool = False,
) -> int:
    """Which strategy, engine, split and sizes for a model, cards and use; what is measured, what estimated.

    Answered from metadata and shipped curves. Exit 0: advised, 4: it does not fit, 3: nobody could look.
    """
    from checks import modelmeta
    from checks.advise import command as advising
    from checks.advise.own import load_benches
    from provision.bench import store

    asked = advising.question(model=model, gpus=gpus, users=users, use=use, context=context, engine=engine)
    own = [*store.benches(), *load_benches(benches)]
    hub = endpoint or os.environ.get("HF_ENDPOINT")

    def load(ref: "ModelRef") -> "modelmeta.ModelMeta":
        return modelmeta.load_model_meta(ref, endpoint=hub, token=modelmeta.hub_token(), tokenizer=True)

    return advising.answer(asked, load, benches=own, write=write, as_json=json)
