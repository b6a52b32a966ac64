"""`--measure-network`: iperf3 from every rank to rank 0, where the hosts have it; it loads the network."""

import json

from inventory.errors import ChangeFailed, CheckRefused
from provision.nodes.ranks import Rank

__all__ = ["measure_links"]

SECONDS = 3
#: From master_port on: beyond what the supervisors and Ray's head take.
PORT = 10


def measure_links(ranks: list[Rank]) -> dict[str, float]:
    """Host -> Mbit/s to rank 0, one after another so that they don't share the link.

    Raises CheckRefused naming the host without iperf3.
    """
    head, *others = ranks
    group = head.wanted().group
    address = {m["host"]: m["address"] for m in group["members"]}
    for rank in ranks:
        if not rank.shell.run(("sh", "-c", "command -v iperf3"), timeout=20, check=False, sudo=False).ok:
            raise CheckRefused(
                "iperf3 is not installed",
                hint="apt-get install -y iperf3 on every host of the group, or leave --measure-network out",
                host=rank.name,
            )
    return {
        r.name: _one(head, r, address[head.name], address[r.name], group["port"] - 1 + PORT) for r in others
    }


def _one(head: Rank, other: Rank, server: str, own: str, port: int) -> float:
    once = ("iperf3", "-s", "-1", "-B", server, "-p", str(port), "--forceflush")
    serve = ("timeout", "-k", "2", str(SECONDS + 30), *once)
    with head.shell.session(serve) as session:
        session.readline(timeout=10)  # a line of its banner: it is about to listen
        argv = ("iperf3", "-c", server, "-B", own, "-p", str(port), "-t", str(SECONDS), "-J")
        got = other.shell.run(argv, timeout=SECONDS + 20, check=False)
    return mbit_of(got.stdout, other.name)


def mbit_of(text: str, host: str) -> float:
    """What the receiver got, from iperf3's JSON."""
    told = None
    try:
        told = json.loads(text)
        return float(told["end"]["sum_received"]["bits_per_second"]) / 1e6
    except (ValueError, KeyError, TypeError) as e:
        error = told.get("error") if isinstance(told, dict) else None
        said = error or text.strip()[-200:] or "no output"
        raise ChangeFailed(f"iperf3 measured nothing: {said}", hint="is its port open?", host=host) from e
