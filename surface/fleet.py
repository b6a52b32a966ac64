"""Many boxes: rollout and back, what serves, what differs."""

from invoke import Context

from inventory.defaults import FORKS
from surface.commandline import command
from surface.options import LIMIT, fleet_of, front_of, select

ROUTER = "Host of `invoke router` that drains and restores them. Default: eyas_router; none: without."


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
        "router": ROUTER,
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
    router: str = "",
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

    hosts = [] if resume or rollout_id else select(limit, inventory, "--limit")
    options = Options(
        canary, serial, max_fail, pause, forks, ttft_tolerance, speed_tolerance, acceptance_tolerance,
        drain, restore, drain_timeout, router=front_of(router, hosts, inventory),
    )  # fmt: skip
    flags = Flags(
        check=check,
        detailed_exitcode=detailed_exitcode,
        preflight=preflight,
        accept_new_host_keys=accept_new_host_keys,
        forks=forks,
        as_json=json,
    )
    ask = fleet.Ask(fleet_of(inventory), flags, options, yes)
    if resume or rollout_id:
        return fleet.resume(ask, rollout_id)
    return fleet.rollout(hosts, deployment, ask)


@command(
    help={
        **LIMIT,
        "deployment": "Name of the deployment. Default: eyas_deployment, or the only one served.",
        "to": "Release to go back to. Default: the one that served before.",
        "serial": "How many hosts (or percent) at once.",
        "router": ROUTER,
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
    router: str = "",
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
    hosts = select(limit, inventory, "--limit")
    options = Options(canary="0", serial=serial, forks=forks, router=front_of(router, hosts, inventory))
    ask = fleet.Ask(fleet_of(inventory), flags, options, yes)
    return fleet.rollback(hosts, deployment, to, ask)


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
    return found.show_releases(select(limit, inventory, "--limit"), flags)


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
    return found.show_audit(select(limit, inventory, "--limit"), flags, last=last)


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
    return fleet.status(select(limit, inventory, "--limit"), flags, watch=watch)


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
    return unused.prune(select(limit, inventory, "--limit"), flags)


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
    return differences.drift(select(limit, inventory, "--limit"), deployment, flags, deep=deep)


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
    return fleet_locks(action, select(limit, inventory, "--limit"), fleet_of(inventory), flags)
