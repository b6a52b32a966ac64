"""Many boxes: rollout and back, what serves, what differs."""

from invoke import Context

from surface.options import Fleet, fleet_command, fleet_of, front_of

ROUTER = "Host of `invoke router` that drains and restores them. Default: eyas_router; none: without."


@fleet_command(
    help={
        "deployment": "Name or file of the deployment. Default: each host's eyas_deployment variable.",
        "canary": "So many hosts (or percent) are switched first; 0: none.",
        "serial": "Size of the batches after it: 2, 25%, or a growing list 1,10%,50%.",
        "max-fail": "Stop when so many hosts have failed, over the whole run.",
        "pause": "Seconds between two batches.",
        "drain": "Command run here before a host's switch, with {host} {address} {port} {deployment}.",
        "restore": "Command run here after it, also after a rollback.",
        "router": ROUTER,
        "drain-timeout": "Seconds in which requests in flight must have ended.",
        "back-timeout": "Seconds to wait for a host that was lost in its switch.",
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
    fleet: Fleet,
    deployment: str | None = None,
    canary: str = "1",
    serial: str = "25%",
    max_fail: int = 1,
    pause: float = 0.0,
    drain: str = "",
    restore: str = "",
    router: str = "",
    drain_timeout: float = 300.0,
    back_timeout: float = 300.0,
    ttft_tolerance: float = 50.0,
    speed_tolerance: float = 25.0,
    acceptance_tolerance: float = 15.0,
    check: bool = False,
    detailed_exitcode: bool = False,
    preflight: bool = True,
    yes: bool = False,
    resume: bool = False,
    rollout_id: str = "",
) -> int:
    """Many hosts to a deployment: prepare all, switch a canary, then batches, each behind a measured gate.

    A red gate puts that host's former release back, stops the run and exits 6; other hosts stay untouched.
    """
    from provision.rollout import command as made
    from provision.rollout.plan import Options

    hosts = [] if resume or rollout_id else fleet.hosts()
    options = Options(
        canary, serial, max_fail, pause, fleet.forks, ttft_tolerance, speed_tolerance, acceptance_tolerance,
        drain, restore, drain_timeout, back_timeout, router=front_of(router, hosts, fleet.inventory),
    )  # fmt: skip
    flags = fleet.flags(check=check, detailed_exitcode=detailed_exitcode, preflight=preflight)
    ask = made.Ask(fleet_of(fleet.inventory), flags, options, yes)
    return made.resume(ask, rollout_id) if resume or rollout_id else made.rollout(hosts, deployment, ask)


@fleet_command(
    help={
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
    fleet: Fleet,
    deployment: str | None = None,
    to: str | None = None,
    serial: str = "100%",
    router: str = "",
    check: bool = False,
    yes: bool = False,
) -> int:
    """Back to a release that is still on the hosts, proven by the same gate as a rollout."""
    from provision.rollout import command as made
    from provision.rollout.plan import Options

    hosts = fleet.hosts()
    front = front_of(router, hosts, fleet.inventory)
    options = Options(canary="0", serial=serial, forks=fleet.forks, router=front)
    ask = made.Ask(fleet_of(fleet.inventory), fleet.flags(check=check), options, yes)
    return made.rollback(hosts, deployment, to, ask)


@fleet_command()
def releases(c: Context, fleet: Fleet) -> int:
    """The releases on the hosts: current, previous, proven, when each was last served."""
    from provision.releases import show_releases

    return show_releases(fleet.hosts(), fleet.flags())


@fleet_command(help={"last": "So many entries."})
def audit(c: Context, fleet: Fleet, last: int = 50) -> int:
    """Who made which release the served one, when: from the hosts own records; and past rollouts."""
    from provision.releases import show_audit

    return show_audit(fleet.hosts(), fleet.flags(), last=last)


@fleet_command(help={"watch": "Look again every five seconds until Ctrl-C."})
def status(c: Context, fleet: Fleet, watch: bool = False) -> int:
    """The fleet at a glance: release, state, GPU and KV use, requests, acceptance, drift.

    Exit 4 when a host does not serve what it should, 3 when one gave no answer.
    """
    from provision.status import status as show

    return show(fleet.hosts(), fleet.flags(), watch=watch)


@fleet_command(help={"check": "Say what would be removed; remove nothing."})
def prune(c: Context, fleet: Fleet, check: bool = False) -> int:
    """Remove releases, environments and weights that nobody serves; current and previous ones stay."""
    from provision.prune import prune as remove

    return remove(fleet.hosts(), fleet.flags(check=check))


@fleet_command(
    help={
        "deployment": "Compare with this one. Default: eyas_deployment, else its release only.",
        "deep": "Hash every weight file instead of comparing sizes.",
        "detailed-exitcode": "Exit 8 when anything differs.",
    }
)
def drift(
    c: Context,
    fleet: Fleet,
    deployment: str | None = None,
    deep: bool = False,
    detailed_exitcode: bool = False,
) -> int:
    """How hosts differ from what they were given and from each other: driver, packages, argv, limits."""
    from provision.drift import drift as compare

    return compare(fleet.hosts(), deployment, fleet.flags(detailed_exitcode=detailed_exitcode), deep=deep)


@fleet_command(name="fleet-lock", positional=["action"], help={"action": "status (default) | release"})
def fleet_lock(c: Context, fleet: Fleet, action: str | None = None) -> int:
    """Who works on these hosts now. Locks end with their run; `release` ends one that cannot be asked.

    (`invoke lock` makes wheel locks.)
    """
    from provision.rollout.locks import fleet_locks

    return fleet_locks(action or "status", fleet.hosts(), fleet_of(fleet.inventory), fleet.flags())
