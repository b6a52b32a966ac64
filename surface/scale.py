"""What a fleet costs: measured on lab hosts, and reckoned beyond them."""

from invoke import Context

from inventory.defaults import FORKS
from surface.commandline import command


@command(
    checkout=True,
    name="bench-fleet",
    help={
        "hosts": "So many lab hosts for the small job; 0: leave it out.",
        "rounds": "Runs without a change of each tool.",
        "others": "Also ansible-core, mitogen and pyinfra, from PyPI into an environment of their own.",
        "light": "Look at so many light lab hosts with `facts`: seconds, memory, CPU by host.",
        "spread": "Bring weights to so many lab hosts over limited links, by the rollout's own tree.",
        "megabytes": "With --spread: size of the weights.",
        "mbit": "With --spread: what each host's link carries, each way.",
        "yes": "Install missing system packages without asking.",
        "json": "One JSON document.",
    },
)
def bench_fleet(
    c: Context,
    hosts: int = 20,
    rounds: int = 3,
    others: bool = False,
    light: int = 0,
    spread: int = 0,
    megabytes: int = 40,
    mbit: int = 16,
    yes: bool = False,
    json: bool = False,
) -> int:
    """What a fleet costs, on lab hosts of this machine, beside other tools and plain SSH."""
    from tests.lab.scale import run

    asked = run.Asked(hosts, rounds, others, light, spread, megabytes, mbit)
    return run.bench(asked, yes=yes, as_json=json)


@command(
    checkout=True,
    name="simulate-fleet",
    help={
        "hosts": "Fleets of so many hosts, with commas.",
        "gigabytes": "Size of the weights.",
        "mbit": "What each host's link carries, each way.",
        "forks": "Hosts at once.",
        "json": "One JSON document.",
    },
)
def simulate_fleet(
    c: Context,
    hosts: str = "100,1000,10000",
    gigabytes: float = 65.0,
    mbit: float = 1000.0,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """Looks, distribution and rollout of fleets that no lab holds, by the product's own planning code."""
    from tests.lab.hosts import say_to_stderr
    from tests.scale.simulate import simulate_fleet

    return simulate_fleet(hosts, gigabytes, mbit, forks, as_json=json, say=say_to_stderr)
