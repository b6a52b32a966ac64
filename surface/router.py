"""One endpoint for many boxes: the router in front of the fleet."""

from invoke import Context

from inventory.errors import UsageError
from surface.commandline import command
from surface.options import LIMIT, one_host, select

ACTIONS = ("install", "status", "drain", "restore")


@command(
    positional=["action", "name"],
    help={
        **{k: v for k, v in LIMIT.items() if k != "forks"},
        "action": "install (or nothing) | status | drain NAME | restore NAME",
        "name": "The backend to drain or restore: its name in the inventory.",
        "host": "The one host that the router runs on. Required.",
        "limit": "The hosts behind it, an Ansible pattern; only to install.",
        "kind": "haproxy (the distribution's package) or sglang-router (prefix-aware; a wheel by its lock).",
        "port": "Where clients find it.",
        "listen": "Address it binds.",
        "deployment": "Name or file of the deployment. Default: each host's eyas_deployment variable.",
        "push-wheels": "sglang-router: download here and send, for a host without an index.",
        "timeout": "drain, restore: seconds in which requests in flight must have ended, or it must answer.",
        "check": "Say what would change; write nothing on the host.",
        "diff": "Show the files that change.",
        "detailed-exitcode": "With --check: exit 8 when changes are pending.",
    },
)
def router(
    c: Context,
    action: str = "install",
    name: str = "",
    host: str | None = None,
    limit: str | None = None,
    inventory: str | None = None,
    kind: str = "haproxy",
    port: int = 8080,
    listen: str = "0.0.0.0",  # noqa: S104 - an endpoint is for others, and it has a key
    deployment: str | None = None,
    push_wheels: bool = False,
    timeout: float = 300.0,
    check: bool = False,
    diff: bool = False,
    detailed_exitcode: bool = False,
    accept_new_host_keys: bool = False,
    json: bool = False,
) -> int:
    """One endpoint in front of the fleet: an existing router, kept as wanted; drain and restore backends."""
    from provision.router import command as made
    from provision.run import Flags

    action = action or "install"
    if action not in ACTIONS:
        from inventory.nearest import did_you_mean

        near = did_you_mean(action, ACTIONS) or " | ".join(ACTIONS)
        raise UsageError(f"router can't {action!r}", hint=near)
    flags = Flags(
        check=check,
        diff=diff,
        detailed_exitcode=detailed_exitcode,
        accept_new_host_keys=accept_new_host_keys,
        as_json=json,
    )
    front = one_host(host, inventory)
    if action != "install":
        if limit or check:
            raise UsageError(
                f"{action} takes no --limit and no --check", hint=f"invoke router {action} --help"
            )
        return made.act(action, name, front, flags, patience_s=timeout)
    if name:
        raise UsageError(f"install takes no {name!r}", hint="the backends: --limit PATTERN")
    ask = made.Ask(kind, port, listen, deployment, push_wheels)
    return made.install(front, select(limit, inventory, "--limit"), ask, flags)
