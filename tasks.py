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
    help={"quick": "Unit tests only.", "yes": "Install missing system packages without asking."},
)
def test(c: Context, quick: bool = False, yes: bool = False) -> int:
    """All tests; those that need Linux and root say so when they are skipped."""
    return _each([UNIT_TESTS] if quick else [UNIT_TESTS, ["pytest", "-q", "-m", f"not ({UNIT})"]])


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


def _select(host: str | None, inventory: str | None) -> "list[Host]":
    from inventory.hosts import default_inventory

    if not host:
        raise UsageError("no host given", hint="--host NAME (or a group; `invoke hosts` lists them)")
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
            preflight=preflight,
            accept_new_host_keys=accept_new_host_keys,
            forks=forks,
            as_json=json,
            install_driver=install_driver,
            yes=yes,
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
