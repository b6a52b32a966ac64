"""Is speculation paying on this box, and is it still?"""

from invoke import Context

from inventory.defaults import FORKS
from inventory.errors import UsageError
from surface.commandline import command
from surface.options import SELECT, select


@command(
    help={
        **SELECT,
        "deployment": "Name or file of the deployment. Default: the host's eyas_deployment variable.",
        "concurrency": "Requests at once, a cell each. Default: 1,2,4,8,16,32.",
        "workload": "code, chat, sql, rag, python, typescript, or a file of prompts; several with commas.",
        "compare": "Serve these in turn and decide: none,ngram,draft_model,eagle3. Then what serves now.",
        "drafts": "With --compare: METHOD=REPO or METHOD=/folder, with commas. Default: the known pairs.",
        "tune": "With --compare --no-tune: don't serve the best number of draft tokens as well.",
        "against": "baseline: the short bench against the one its release was proven with.",
        "apply": "With --compare: write tokens and limit of the verdict into the deployment's file.",
        "prompt-tokens": "Tokens of each prompt, by the server's tokenizer. Default: 1200.",
        "output-tokens": "Tokens of each answer. Default: 600.",
        "repeats": "At most so many of each cell; fewer when 5 % can be told before.",
        "wheelhouse": "Folder with the lock's wheels, for deployments with wheels_from: push.",
        "preflight": "--no-preflight: with --compare, don't ask the pair gate and the planner first.",
        "force": "Also when requests of others run there now.",
        "yes": "With --compare: don't ask before what serves is stopped.",
        "endpoint": "A hub other than the public one.",
    }
)
def bench(
    c: Context,
    host: str | None = None,
    deployment: str | None = None,
    inventory: str | None = None,
    concurrency: str = "",
    workload: str = "",
    compare: str = "",
    drafts: str = "",
    tune: bool = True,
    against: str = "",
    apply: bool = False,
    prompt_tokens: int = 0,
    output_tokens: int = 0,
    repeats: int = 10,
    wheelhouse: str | None = None,
    preflight: bool = True,
    force: bool = False,
    yes: bool = False,
    endpoint: str = "",
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Measure what a host serves, or compare strategies on it and say which pays up to which load.

    Exit 0: measured, or as fast as its baseline; 4: slower than its baseline; 3: nobody could tell.
    """
    from provision.bench import command as task
    from provision.run import Flags

    words = task.parse(
        concurrency=concurrency,
        workloads=workload,
        compare=compare,
        drafts=drafts,
        against=against,
        apply=apply,
        tune=tune,
        prompt_tokens=prompt_tokens or None,
        output_tokens=output_tokens or None,
        repeats=repeats,
        force=force,
    )
    flags = Flags(
        wheelhouse=wheelhouse,
        yes=yes,
        preflight=preflight,
        accept_new_host_keys=accept_new_host_keys,
        forks=forks,
        as_json=json,
    )
    return task.bench_hosts(select(host, inventory), deployment, words, flags, endpoint=endpoint or None)


@command(
    help={
        "host": "Ansible pattern: install or remove the review on these hosts.",
        "limit": "Ansible pattern: show the history of these hosts.",
        **{k: v for k, v in SELECT.items() if k != "host"},
        "deployment": "Name or file of the deployment. Default: the host's eyas_deployment variable.",
        "install": "A timer on the host: short bench, what differs, history, a textfile for node_exporter.",
        "remove": "Take the timer away; the history stays.",
        "calendar": 'When, as systemd writes it: weekly, daily, "Sun 04:00".',
        "textfiles": "node_exporter's textfile folder; used where it exists.",
        "now": "With --install: also make the first review now.",
        "last": "Reviews shown of each deployment.",
    }
)
def review(
    c: Context,
    host: str | None = None,
    limit: str | None = None,
    deployment: str | None = None,
    inventory: str | None = None,
    install: bool = False,
    remove: bool = False,
    calendar: str = "weekly",
    textfiles: str = "/var/lib/prometheus/node-exporter",
    now: bool = False,
    last: int = 8,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Look now and then, on the host itself, whether it is still as fast; and the fleet's history of that.

    With --limit, exit 4: a host is slower than when its release was proven; 3: one could not be asked.
    """
    from provision import review as task
    from provision.run import Flags

    flags = Flags(accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    if sum((install, remove, limit is not None)) > 1:
        raise UsageError("--install, --remove and --limit exclude each other", hint="give one of them")
    if install:
        settings = task.Review(calendar=calendar, textfiles=textfiles, now=now)
        return task.install(select(host, inventory), deployment, settings, flags)
    if remove:
        return task.remove(select(host, inventory), deployment, flags)
    if host:
        raise UsageError("--host goes with --install or --remove", hint=f"--limit {host} shows the history")
    return task.show_history(select(limit, inventory, "--limit"), flags, last=max(1, last))
