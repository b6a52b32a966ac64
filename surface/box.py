"""One box: facts, provision, and why it does not serve."""

from pathlib import Path

from invoke import Context

from inventory.defaults import FORKS
from inventory.errors import UsageError
from surface.commandline import command
from surface.options import SELECT, select


@command(
    help={
        **SELECT,
        "deployment": "Name or file of the deployment. Default: the host's eyas_deployment variable.",
        "check": "Say what would change; write nothing on the host.",
        "diff": "Show the files that change, secrets masked.",
        "detailed-exitcode": "With --check: exit 8 when changes are pending.",
        "wheelhouse": "Folder with the lock's wheels, for deployments with wheels_from: push.",
        "preflight": "--no-preflight: don't ask the pair gate and the memory planner first.",
        "install-driver": "Install Ubuntu's NVIDIA driver where it is missing or too old, hold it, reboot.",
        "yes": "Reboot without asking, where a new driver needs it.",
        "measure-network": "Of a group: iperf3 between its hosts first (they need it installed).",
    }
)
def provision(
    c: Context,
    host: str | None = None,
    deployment: str | None = None,
    inventory: str | None = None,
    check: bool = False,
    diff: bool = False,
    detailed_exitcode: bool = False,
    wheelhouse: str | None = None,
    preflight: bool = True,
    install_driver: bool = False,
    yes: bool = False,
    measure_network: bool = False,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Take hosts to the deployment: preconditions, wheels, weights, unit, a real answer, proof."""
    from provision import run

    return run.provision(
        select(host, inventory),
        deployment,
        run.Flags(
            check=check,
            diff=diff,
            detailed_exitcode=detailed_exitcode,
            wheelhouse=wheelhouse,
            install_driver=install_driver,
            yes=yes,
            measure_network=measure_network,
            preflight=preflight,
            accept_new_host_keys=accept_new_host_keys,
            forks=forks,
            as_json=json,
        ),
    )


@command(help={**SELECT, "save": "Write the facts to this file (one host) for `doctor --facts` or `plan`."})
def facts(
    c: Context,
    host: str | None = None,
    inventory: str | None = None,
    save: str | None = None,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Everything the probe sees of a host in one round trip; a value nobody could read says why."""
    from provision import run

    flags = run.Flags(accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    return run.facts(select(host, inventory), save, flags)


@command(
    help={
        **SELECT,
        "host": "Ansible pattern: look at these live hosts.",
        "deployment": "With --host: only this deployment's unit. Default: every unit of eyas there.",
        "fix": "With --host: show what would mend it, ask, apply, and look again.",
        "yes": "With --fix: don't ask.",
        "wheelhouse": "With --fix: folder with the lock's wheels, for wheels_from: push.",
        "log": "A log file, or - for standard input.",
        "facts": "A saved probe, or a flat JSON object (gpu, count, driver, torch, model, flags, ...).",
        "unit": "The service's unit file (or `systemctl cat` output).",
        "metrics": "A saved /metrics page, or JSON with measured numbers.",
        "engine": "vllm or sglang, when the log does not tell.",
        "engine-version": "The engine's version, when the log does not tell.",
        "bundle": "A bundle that --save made.",
        "save": "Folder for a redacted bundle of what was looked at.",
        "junit": "File for the findings as JUnit XML: a suite per host.",
        "list": "List every code and its cause.",
        "score": "Contributors: score a folder of cases.",
        "json": "One JSON document on standard output.",
    }
)
def doctor(
    c: Context,
    host: str | None = None,
    deployment: str | None = None,
    inventory: str | None = None,
    fix: bool = False,
    yes: bool = False,
    wheelhouse: str | None = None,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    log: str = "",
    facts: str = "",
    unit: str = "",
    metrics: str = "",
    engine: str = "",
    engine_version: str = "",
    bundle: str = "",
    save: str = "",
    junit: str = "",
    list: bool = False,
    score: str = "",
    json: bool = False,
) -> int:
    """Name the one cause of a failed or slow deployment, with evidence and a computed fix.

    Exit 0: no error found, 4: errors found, 3: could not look, 1: a check of ours crashed.
    """
    from checks.doctor import cli

    if list:
        return cli.show_list(as_json=json)
    if score:
        return cli.show_score(Path(score), as_json=json)
    if host is not None:
        from provision import diagnosis, run

        if log or facts or unit or metrics or bundle:
            raise UsageError("--host looks at live hosts, the others at files", hint="give one of them")
        flags = run.Flags(
            wheelhouse=wheelhouse, accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json
        )
        return diagnosis.diagnose_hosts(
            select(host, inventory), deployment, flags, save=save, junit=junit, fix=fix, yes=yes
        )
    if fix or deployment:
        raise UsageError("--fix and --deployment go with --host", hint="add --host NAME")
    inputs = cli.gather(
        bundle=bundle, log=log, facts=facts, unit=unit, metrics=metrics, engine=engine, version=engine_version
    )
    return cli.show_diagnosis(inputs, as_json=json, save=save, junit=junit)


@command(
    positional=["name"],
    help={"name": "A code (MEM010) or a cause (kv-cache-too-small).", "json": "One JSON document."},
)
def explain(c: Context, name: str, json: bool = False) -> int:
    """What a doctor's code means: what, why, example, fix."""
    from checks.doctor import cli

    if name in {"--help", "-h"}:  # a positional argument takes the word before invoke does
        print("Usage: invoke explain CODE|CAUSE [--json]; all codes: invoke doctor --list")
        return 0
    return cli.show_code(name, as_json=json)
