"""The command line: parse, select hosts, call one function, print, exit code. Nothing else lives here.

`invoke TASK --help` explains each task; exit codes are in inventory/errors.py.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Collection, Context

from commandline import ROOT, command, run_program
from inventory.defaults import FORKS, PLATFORM, PYTHON
from inventory.errors import UsageError

if TYPE_CHECKING:  # a task loads what it uses: `invoke --list` needs none of it
    from checks import modelmeta
    from inventory.model import Host, ModelRef

UNIT = "not lab and not engine"
LAB_TESTS = ["pytest", "-q", "-m", f"not ({UNIT})"]
UNIT_TESTS = ["pytest", "-q", "-n", "auto", "-m", UNIT]


@command(
    checkout=True,
    help={
        "fix": "Format and apply safe fixes instead of only reporting.",
        "tests": "--no-tests: without the unit tests.",
        "yes": "Ask nothing.",
    },
)
def check(c: Context, fix: bool = False, tests: bool = True, yes: bool = False) -> int:
    """The one contributor command: format, lint, types, unit tests, generated docs."""
    steps = [
        ["ruff", "format", *([] if fix else ["--check"]), "."],
        ["ruff", "check", *(["--fix"] if fix else []), "."],
        ["mypy"],
    ]
    return _each([*steps, UNIT_TESTS] if tests else steps)


@command(checkout=True)
def docs(c: Context) -> None:
    """Write the generated pages: docs/tasks.md, docs/codes.md, the task table of README.md."""
    from tests.generate_docs import write

    for path in write():
        print(f"wrote {path.relative_to(ROOT)}")


@command(
    checkout=True,
    help={
        "quick": "Unit tests only.",
        "again": "Run what failed in the lab once more: tells an unsteady test from a broken one.",
        "yes": "Install missing system packages without asking.",
    },
)
def test(c: Context, quick: bool = False, again: bool = False, yes: bool = False) -> int:
    """All tests; those that need Linux and root say so when they are skipped."""
    unit = _each([UNIT_TESTS])
    if quick:
        return unit
    in_lab = _each([LAB_TESTS])
    if in_lab and again:
        print("eyas: once more, only what failed in the lab; what passes now is unsteady and wants a look")
        in_lab = _each([[*LAB_TESTS, "--last-failed", "--last-failed-no-failures=none"]])
    return max(unit, in_lab)


@command(
    help={
        "limit": "Ansible pattern: names, groups, gpu[01:08], globs, !excluded, &both, ~regex. Default: all.",
        "inventory": "An Ansible inventory, YAML or INI. Default: inventory/hosts.yml or .ini.",
        "json": "One JSON document instead of a table.",
    }
)
def hosts(c: Context, limit: str | None = "all", inventory: str | None = None, json: bool = False) -> None:
    """The hosts of the inventory, with address, groups and deployment."""
    from inventory.hosts import default_inventory
    from provision.show import show_hosts

    found = default_inventory(inventory)
    show_hosts(found, found.select(limit), as_json=json)


@command(help={"json": "One JSON document instead of a table."})
def deployments(c: Context, json: bool = False) -> int:
    """The deployments that can be served by name; a broken file is named with its line (exit 2)."""
    from inventory.load import list_deployments
    from provision.show import show_deployments

    return show_deployments(list_deployments(), as_json=json)


@command(
    help={
        "deployment": "Name or file of the deployment.",
        "update": "Also move a model that is already pinned.",
        "revision": "Branch or tag to pin, instead of the one written (or main, with --update).",
        "json": "One JSON document.",
    }
)
def pin(
    c: Context,
    deployment: str | None = None,
    update: bool = False,
    revision: str | None = None,
    json: bool = False,
) -> None:
    """Write today's commits of a deployment's models into its file, so that nothing moves by itself.

    The hub is HF_ENDPOINT; the token is the deployment's hub_token, else HF_TOKEN.
    """
    from provision.pin import pin_deployment
    from provision.show import show_pins

    show_pins(pin_deployment(deployment or "", update=update, revision=revision), as_json=json)


@command(
    iterable=["requirement", "override"],
    help={
        "engine": "vllm or sglang.",
        "engine-version": "Exact version, like 0.33.0.",
        "python": "Python of the host, like 3.12 (Ubuntu 24.04).",
        "platform": "Platform of the host as uv names it: architecture and oldest glibc.",
        "device": "cuda or cpu: refuse a lock that resolved to the other.",
        "requirement": "File with further requirements; may be repeated.",
        "override": "File with requirements that replace others; \"x ; sys_platform == 'never'\" drops x.",
        "find-links": "Folder of wheels to look in.",
        "no-index": "Use only that folder: with --find-links, proves that a wheelhouse is complete.",
        "output": "File or folder to write to. Default: inventory/locks.",
        "json": "One JSON document.",
    },
)
def lock(
    c: Context,
    requirement: list[str],
    override: list[str],
    engine: str | None = None,
    engine_version: str | None = None,
    python: str = PYTHON,
    platform: str = PLATFORM,
    device: str | None = None,
    find_links: str | None = None,
    no_index: bool = False,
    output: str | None = None,
    json: bool = False,
) -> None:
    """Resolve an engine into a complete wheel lock with hashes for a host's Python and platform.

    Reads metadata only, downloads no engine. uv's own configuration says where wheels come from.
    """
    from provision.lockcommand import lock_engine
    from provision.show import show_lock

    info = lock_engine(
        engine,
        engine_version,
        python=python,
        platform=platform,
        device=device,
        requirement_files=requirement,
        override_files=override,
        find_links=find_links,
        no_index=no_index,
        output=output,
    )
    show_lock(info, as_json=json)


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
    checkout=True,
    positional=["action", "host", "what"],
    help={
        "action": "up | status | down | ssh | run | fault | heal",
        "host": "One host of the lab.",
        "what": "ssh, run: a command line. fault, heal: which (`lab fault` lists them).",
        "value": "fault: its parameter, e.g. a port, a rate, a size.",
        "hosts": "up: how many, named gpu01, gpu02, ...",
        "profile": "up: the cards (tests/lab/profiles), e.g. rtx4090x2 or h200x2+xid79.",
        "lab": "Which lab, where several live side by side.",
        "os": "up: what the host says it is: ubuntu, ubuntu2204, debian.",
        "release": "up: what it is built from: auto, bookworm, noble.",
        "size": "up: a small disk, e.g. 512M (held in memory).",
        "memory": "up: memory of the whole host, e.g. 2G.",
        "user": "up: the inventory's user: op or root.",
        "sudo": "up: op's sudo: nopasswd or password.",
        "all": "down: every lab.",
        "json": "One JSON document on stdout.",
        "yes": "Install missing system packages without asking.",
    },
)
def lab(
    c: Context,
    action: str | None = None,
    host: str | None = None,
    what: str | None = None,
    value: str = "",
    hosts: int = 2,
    profile: str = "rtx4090x1",
    lab: str = "default",
    os: str = "ubuntu",
    release: str = "auto",
    size: str = "",
    memory: str = "",
    user: str = "op",
    sudo: str = "nopasswd",
    all: bool = False,
    json: bool = False,
    yes: bool = False,
) -> int:
    """Real hosts with simulated cards on this machine: `lab up --hosts 4`, `lab ssh gpu01`, `lab down`."""
    from tests.lab import cli

    options = {
        "hosts": hosts,
        "profile": profile,
        "lab": lab,
        "os": os,
        "release": release,
        "size": size,
        "memory": memory,
        "user": user,
        "sudo": sudo,
        "all": all,
        "json": json,
        "yes": yes,
        "value": value,
    }
    return cli.run(action or "", host or "", what or "", **options)


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
        return planning.plan_hosts(_select(host, inventory), deployment or None, ask, load, flags)
    found = surface.gpus_from(gpu=gpu, count=gpus, facts=surface.load_facts(facts) if facts else None)
    return surface.deployment(load_deployment(deployment), found, ask, load, as_json=json)


SELECT = {
    "host": "Ansible pattern: names, groups, gpu[01:08], globs, !excluded, commas. Required.",
    "inventory": "An Ansible inventory, YAML or INI. Default: inventory/hosts.yml or .ini.",
    "accept-new-host-keys": "Record the keys of hosts that known_hosts doesn't have yet.",
    "forks": "At most this many hosts at once.",
    "json": "One JSON document on stdout; progress goes to stderr.",
}


def _select(host: str | None, inventory: str | None, option: str = "--host") -> "list[Host]":
    from inventory.hosts import default_inventory

    if not host:
        raise UsageError("no host given", hint=f"{option} NAME (or a group; `invoke hosts` lists them)")
    return default_inventory(inventory).select(host)


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
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Take hosts to the deployment: preconditions, wheels, weights, unit, a real answer, proof."""
    from provision import run

    return run.provision(
        _select(host, inventory),
        deployment,
        run.Flags(
            check=check,
            diff=diff,
            detailed_exitcode=detailed_exitcode,
            wheelhouse=wheelhouse,
            install_driver=install_driver,
            yes=yes,
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
    return run.facts(_select(host, inventory), save, flags)


@command(
    help={
        "deployment": "Name or file of the deployment.",
        "engine-version": "Exact version. Default: the deployment's own; auto is the newest locked one.",
        "node-rank": "Which machine of a deployment over several: 0 is the head.",
        "head-address": "Where rank 0 of such a deployment is reached.",
        "json": "One JSON document.",
    },
    name="command",
)
def command_line(
    c: Context,
    deployment: str | None = None,
    engine_version: str | None = None,
    node_rank: int = 0,
    head_address: str | None = None,
    json: bool = False,
) -> None:
    """The exact command that serves a deployment, for any catalogued engine version."""
    from inventory.load import load_deployment
    from inventory.roles import Node
    from provision.show_command import show_command

    node = Node(node_rank, head_address) if head_address else None
    show_command(load_deployment(deployment or ""), engine_version, node=node, as_json=json)


@command(
    help={
        "command": "The command or snippet, quoted.",
        "file": "Read it from this file; - reads standard input.",
        "engine": "vllm or sglang: translate for this one. Default: the command's own.",
        "engine-version": "For this version. Default: the newest catalogued.",
        "write": "Also write it as a deployment of this name, inventory/deployments/NAME.yml.",
        "json": "One JSON document: argv, deployment, notes.",
    }
)
def translate(
    c: Context,
    command: str | None = None,
    file: str | None = None,
    engine: str | None = None,
    engine_version: str | None = None,
    write: str | None = None,
    json: bool = False,
) -> None:
    """What a command someone found becomes for the engine version wanted, with a note per change.

    Reads vllm serve, python -m vllm.entrypoints..., sglang.launch_server, whole shell snippets and docker run
    lines, of any age. Runs nothing and asks no network.
    """
    from inventory.translate import translate as translate_text
    from inventory.translated import snippet_text, write_deployment
    from provision.show_command import show_translation

    found = translate_text(
        snippet_text(command, file), engine=engine, engine_version=engine_version, name=write
    )
    written = write_deployment(found.deployment, found.notes) if write else None
    show_translation(found, written, as_json=json)


@command(
    help={
        "engine": "Only this engine: vllm or sglang.",
        "engine-version": "Everything known of one version: pins, flags, methods, what it lacks.",
        "json": "One JSON document.",
    }
)
def engines(
    c: Context, engine: str | None = None, engine_version: str | None = None, json: bool = False
) -> None:
    """The engine catalogue: torch, CUDA, driver floor, Python and draft methods of each version."""
    from provision.show_command import show_engines

    show_engines(engine, engine_version, as_json=json)


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
    list: bool = False,
    score: str = "",
    json: bool = False,
) -> int:
    """Name the one cause of a failed or slow deployment, with evidence and a computed fix.

    Exit 0: no error found, 4: errors found, 3: could not look.
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
            _select(host, inventory), deployment, flags, save=save, fix=fix, yes=yes
        )
    if fix or deployment:
        raise UsageError("--fix and --deployment go with --host", hint="add --host NAME")
    inputs = cli.gather(
        bundle=bundle, log=log, facts=facts, unit=unit, metrics=metrics, engine=engine, version=engine_version
    )
    return cli.show_diagnosis(inputs, as_json=json, save=save)


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


@command(
    checkout=True,
    help={
        "quick": "With the stand-in engine: a minute, and it proves nothing about an engine.",
        "down": "Remove the lab host at the end.",
        "yes": "Install missing system packages without asking.",
        "json": "One JSON document on stdout.",
    },
)
def demo(c: Context, quick: bool = False, down: bool = False, yes: bool = False, json: bool = False) -> int:
    """The main job on a lab host: real SSH, systemd, hash-locked wheels, vLLM with an EAGLE-3 head, proof."""
    from tests.lab import demo

    return demo.run(quick=quick, as_json=json, yes=yes, down=down)


LIMIT = {
    "limit": "Ansible pattern: names, groups, gpu[01:08], globs, !excluded, commas. Required.",
    **{k: v for k, v in SELECT.items() if k != "host"},
}


def _fleet(inventory: str | None) -> str:
    """What is one fleet: the inventory file, however it was named."""
    from inventory.hosts import default_inventory

    source = default_inventory(inventory).source
    return str(source.resolve()) if source else "ssh_config"


@command(
    help={
        **LIMIT,
        "deployment": "Name or file of the deployment. Default: each host's eyas_deployment variable.",
        "canary": "So many hosts (or percent) are switched first; 0: none.",
        "serial": "Size of the batches after it: 2, 25%, or a growing list 1,10%,50%.",
        "max-fail": "Stop when so many hosts have failed, over the whole run.",
        "pause": "Seconds between two batches.",
        "drain": "Command run here before a host's switch, with {host} {address} {port} {deployment}.",
        "restore": "Command run here after it, also after a rollback.",
        "drain-timeout": "Seconds in which requests in flight must have ended.",
        "ttft-tolerance": "How much later the first token may come, in percent of the host's own baseline.",
        "speed-tolerance": "How many percent fewer tokens/s are still green.",
        "acceptance-tolerance": "How many percent fewer accepted draft tokens are still green.",
        "check": "Show the plan; write nothing.",
        "detailed-exitcode": "With --check: exit 8 when changes are pending.",
        "preflight": "--no-preflight: don't ask the pair gate and the memory planner first.",
        "yes": "Don't ask after the plan was shown.",
        "resume": "Go on with the unfinished rollout of this fleet, by its own plan.",
        "rollout-id": "With --resume: which one, if not the newest.",
    }
)
def rollout(
    c: Context,
    limit: str | None = None,
    deployment: str | None = None,
    inventory: str | None = None,
    canary: str = "1",
    serial: str = "25%",
    max_fail: int = 1,
    pause: float = 0.0,
    drain: str = "",
    restore: str = "",
    drain_timeout: float = 300.0,
    ttft_tolerance: float = 50.0,
    speed_tolerance: float = 25.0,
    acceptance_tolerance: float = 15.0,
    check: bool = False,
    detailed_exitcode: bool = False,
    preflight: bool = True,
    yes: bool = False,
    resume: bool = False,
    rollout_id: str = "",
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Many hosts to a deployment: prepare all, switch a canary, then batches, each behind a measured gate.

    A red gate puts that host's former release back, stops the run and exits 6; other hosts stay untouched.
    """
    from provision.rollout import command as fleet
    from provision.rollout.plan import Options
    from provision.run import Flags

    options = Options(
        canary, serial, max_fail, pause, forks, ttft_tolerance, speed_tolerance, acceptance_tolerance,
        drain, restore, drain_timeout,
    )  # fmt: skip
    flags = Flags(
        check=check,
        detailed_exitcode=detailed_exitcode,
        preflight=preflight,
        accept_new_host_keys=accept_new_host_keys,
        forks=forks,
        as_json=json,
    )
    ask = fleet.Ask(_fleet(inventory), flags, options, yes)
    if resume or rollout_id:
        return fleet.resume(ask, rollout_id)
    return fleet.rollout(_select(limit, inventory, "--limit"), deployment, ask)


@command(
    help={
        **LIMIT,
        "deployment": "Name of the deployment. Default: eyas_deployment, or the only one served.",
        "to": "Release to go back to. Default: the one that served before.",
        "serial": "How many hosts (or percent) at once.",
        "check": "Show what would be done; write nothing.",
        "yes": "Don't ask after the plan was shown.",
    }
)
def rollback(
    c: Context,
    limit: str | None = None,
    deployment: str | None = None,
    to: str | None = None,
    inventory: str | None = None,
    serial: str = "100%",
    check: bool = False,
    yes: bool = False,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Back to a release that is still on the hosts, proven by the same gate as a rollout."""
    from provision.rollout import command as fleet
    from provision.rollout.plan import Options
    from provision.run import Flags

    flags = Flags(check=check, accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    ask = fleet.Ask(_fleet(inventory), flags, Options(canary="0", serial=serial, forks=forks), yes)
    return fleet.rollback(_select(limit, inventory, "--limit"), deployment, to, ask)


@command(
    help={
        **LIMIT,
    }
)
def releases(
    c: Context,
    limit: str | None = None,
    inventory: str | None = None,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """The releases on the hosts: current, previous, proven, when each was last served."""
    from provision import releases as found
    from provision import run

    flags = run.Flags(accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    return found.show_releases(_select(limit, inventory, "--limit"), flags)


@command(
    help={
        **LIMIT,
        "last": "So many entries.",
    }
)
def audit(
    c: Context,
    last: int = 50,
    limit: str | None = None,
    inventory: str | None = None,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Who made which release the served one, when: from the hosts own records; and past rollouts."""
    from provision import releases as found
    from provision import run

    flags = run.Flags(accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    return found.show_audit(_select(limit, inventory, "--limit"), flags, last=last)


@command(
    help={
        **LIMIT,
        "watch": "Look again every five seconds until Ctrl-C.",
    }
)
def status(
    c: Context,
    watch: bool = False,
    limit: str | None = None,
    inventory: str | None = None,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """The fleet at a glance: release, state, GPU and KV use, requests, acceptance, drift.

    Exit 4 when a host does not serve what it should, 3 when one gave no answer.
    """
    from provision import run
    from provision import status as fleet

    flags = run.Flags(accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    return fleet.status(_select(limit, inventory, "--limit"), flags, watch=watch)


@command(
    help={
        **LIMIT,
        "check": "Say what would be removed; remove nothing.",
    }
)
def prune(
    c: Context,
    check: bool = False,
    limit: str | None = None,
    inventory: str | None = None,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Remove releases, environments and weights that nobody serves; current and previous ones stay."""
    from provision import prune as unused
    from provision import run

    flags = run.Flags(check=check, accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    return unused.prune(_select(limit, inventory, "--limit"), flags)


@command(
    help={
        **LIMIT,
        "deployment": "Compare with this one. Default: eyas_deployment, else its release only.",
        "deep": "Hash every weight file instead of comparing sizes.",
        "detailed-exitcode": "Exit 8 when anything differs.",
    }
)
def drift(
    c: Context,
    deployment: str | None = None,
    deep: bool = False,
    detailed_exitcode: bool = False,
    limit: str | None = None,
    inventory: str | None = None,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """How hosts differ from what they were given and from each other: driver, packages, argv, limits."""
    from provision import drift as differences
    from provision import run

    flags = run.Flags(
        detailed_exitcode=detailed_exitcode,
        accept_new_host_keys=accept_new_host_keys,
        forks=forks,
        as_json=json,
    )
    return differences.drift(_select(limit, inventory, "--limit"), deployment, flags, deep=deep)


@command(
    name="fleet-lock",
    positional=["action"],
    help={
        **LIMIT,
        "action": "status | release",
    },
)
def fleet_lock(
    c: Context,
    action: str = "status",
    limit: str | None = None,
    inventory: str | None = None,
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Who works on these hosts now. Locks end with their run; `release` ends one that cannot be asked.

    (`invoke lock` makes wheel locks.)
    """
    from provision import run
    from provision.rollout.locks import fleet_locks

    flags = run.Flags(accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    return fleet_locks(action, _select(limit, inventory, "--limit"), _fleet(inventory), flags)


@command(
    checkout=True,
    name="bench-fleet",
    help={
        "hosts": "So many lab hosts.",
        "lab": "Which lab; made when it is not there.",
        "rounds": "Runs without a change of each tool; the best counts.",
        "others": "Also ansible-core and pyinfra, installed from PyPI into an environment of their own.",
        "yes": "Install missing system packages without asking.",
        "json": "One JSON document.",
    },
)
def bench_fleet(
    c: Context,
    hosts: int = 20,
    lab: str = "bench",
    rounds: int = 3,
    others: bool = False,
    yes: bool = False,
    json: bool = False,
) -> int:
    """The same small job on lab hosts by eyas, by other tools, and by one plain SSH connection a host."""
    from tests.lab import bench_fleet as bench
    from tests.lab.hosts import Lab

    made = Lab.up([f"gpu{n:02}" for n in range(1, hosts + 1)], name=lab, yes=yes)
    return bench.bench_fleet(made, rounds=rounds, others=others, as_json=json)


def _each(steps: list[list[str]]) -> int:
    failed = [
        s for s in steps if subprocess.run([sys.executable, "-m", *s], cwd=ROOT, check=False).returncode
    ]
    return 5 if failed else 0


def main() -> None:
    """The console script `eyas`: the same tasks under one name."""
    run_program(Collection.from_module(sys.modules[__name__]))


if __name__ == "__main__":
    main()
