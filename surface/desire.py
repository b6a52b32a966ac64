"""What is wanted: hosts, deployments, engines, locks, commands. Nothing here asks a host."""

from invoke import Context

from inventory.defaults import PLATFORM, PYTHON
from surface.commandline import command


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
