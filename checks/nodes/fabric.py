"""The network that all hosts of a group share, chosen from their probes; nothing is guessed.

A network counts when every host has an address in it on an interface that is up and is neither loopback nor
a bridge or tunnel of containers and virtual machines. With several, the fastest by the kernel's own word is
taken; when nobody can tell which that is, the choice is the operator's.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.facts import HostFacts, Missing
from checks.nodes.traffic import speed
from inventory.errors import CheckRefused
from inventory.model import Deployment
from inventory.roles import Node

__all__ = ["Seat", "seats"]

#: Interfaces that never leave the host, or that every host has alike.
INNER = re.compile(
    r"lo|docker\d*|br-[0-9a-f]+|veth.*|virbr.*|vnet.*|cni.*|flannel.*|cali.*|kube-.*|dummy.*|tun\d*|tap.*|wg.*|tailscale.*"
)


@dataclass(frozen=True)
class Seat:
    """One host's place in its group."""

    host: str
    node: Node

    def words(self) -> dict[str, Any]:
        n = self.node
        return {"rank": n.rank, "host": self.host, "address": n.address, "interface": n.interface}


@dataclass(frozen=True)
class _Port:
    name: str
    address: str
    network: ipaddress.IPv4Network
    speed: int | None


def seats(d: Deployment, wishes: Mapping[str, str | None], facts: Sequence[HostFacts]) -> tuple[Seat, ...]:
    """A seat for each host, in rank order as ``facts`` are.

    ``wishes``: host -> interface it is told to use, or None. Raises CheckRefused naming the choices.
    """
    ports = {f.host: _ports(f) for f in facts}
    chosen = _wished(wishes, ports) if any(wishes.values()) else _shared(ports)
    head = chosen[facts[0].host].address
    return tuple(
        Seat(f.host, Node(rank, head, d.master_port, chosen[f.host].address, chosen[f.host].name))
        for rank, f in enumerate(facts)
    )


def _ports(facts: HostFacts) -> list[_Port]:
    fact = facts.get("network.interfaces")
    if isinstance(fact, Missing):
        raise CheckRefused(
            f"nobody could look at the network interfaces: {fact.reason}",
            hint=f"invoke facts --host {facts.host}",
            host=facts.host,
        )
    found = []
    for i in fact.value:
        address, mask = i.get("address"), i.get("netmask")
        if i.get("state") in {"up", "unknown"} and isinstance(address, str) and isinstance(mask, str):
            network = _network(address, mask)
            if network is None:
                continue
            speed = i.get("speed_mbit")
            found.append(_Port(i["name"], address, network, speed if isinstance(speed, int) else None))
    return found


def _network(address: str, mask: str) -> ipaddress.IPv4Network | None:
    """None for what is none to meet on: nonsense, or an address that a host gave itself for want of one."""
    try:
        network = ipaddress.IPv4Network(f"{address}/{mask}", strict=False)
    except ValueError:
        return None
    return None if network.is_link_local else network


def _apart(chosen: Mapping[str, _Port]) -> None:
    """Raise CheckRefused for two hosts at one address: the same machine, or one behind NAT."""
    at: dict[str, str] = {}
    for host, port in chosen.items():
        if port.address in at:
            raise CheckRefused(
                f"{at[port.address]} and {host} have the same address {port.address} on {port.name}: "
                "one machine under two names, or both behind NAT",
                hint="invoke hosts shows which address each name has",
                host=host,
            )
        at[port.address] = host


def _wished(wishes: Mapping[str, str | None], ports: Mapping[str, list[_Port]]) -> dict[str, _Port]:
    """The named interface of each host; hosts in different networks are the operator's to answer for."""
    chosen = {}
    for host, wish in wishes.items():
        port = next((p for p in ports[host] if p.name == wish), None)
        if port is None:
            known = ", ".join(f"{p.name} {p.address}" for p in ports[host] if not INNER.fullmatch(p.name))
            raise CheckRefused(
                f"interface {wish or '(none named)'} has no IPv4 address, or is not up",
                hint=f"interface: one of {known or 'none'}; by host: eyas_overrides: {{interface: NAME}}",
                host=host,
            )
        chosen[host] = port
    _apart(chosen)
    return chosen


def _shared(ports: Mapping[str, list[_Port]]) -> dict[str, _Port]:
    able = {h: [p for p in ps if not INNER.fullmatch(p.name)] for h, ps in ports.items()}
    _refuse_without_ipv4(able)
    every = [{p.network for p in ps} for ps in able.values()]
    networks = sorted(set.intersection(*every))
    options = [o for n in networks if (o := _in(n, able))]
    if not options:
        alike = len({frozenset(p.address for p in ps) for ps in able.values()}) < len(able)
        for n in networks if alike else ():
            _apart({h: next(p for p in ps if p.network == n) for h, ps in able.items()})
        told = "; ".join(f"{h}: {_list(ps)}" for h, ps in able.items())
        raise CheckRefused(
            f"the hosts share no network ({told})", hint="put them into one, or name one: interface: NAME"
        )
    if len(options) == 1:
        return options[0]
    speeds = [min((p.speed or 0) for p in o.values()) for o in options]
    best = max(speeds)
    if best and speeds.count(best) == 1:
        return options[speeds.index(best)]
    told = "; ".join(
        f"{next(iter(o.values())).network} ("
        + ", ".join(f"{h} {p.name}" for h, p in o.items())
        + f", {_rate(s)})"
        for o, s in zip(options, speeds, strict=True)
    )
    raise CheckRefused(
        f"the hosts share several networks and none is known to be the fastest: {told}",
        hint=f"choose one in the deployment, e.g. interface: {next(iter(options[0].values())).name}",
    )


def _refuse_without_ipv4(able: Mapping[str, list[_Port]]) -> None:
    bare = [h for h, ps in able.items() if not ps]
    if bare:
        raise CheckRefused(
            f"no IPv4 address on an interface that is up and leaves the host: {', '.join(bare)}; "
            "hosts of a group meet over IPv4",
            hint="give the interfaces between the hosts IPv4 addresses (a private network will do)",
            host=bare[0],
        )


def _in(network: ipaddress.IPv4Network, able: Mapping[str, list[_Port]]) -> dict[str, _Port]:
    """Each host's port in this network; nothing when two hosts have the same address there (NAT)."""
    found = {h: next(p for p in ps if p.network == network) for h, ps in able.items()}
    return found if len({p.address for p in found.values()}) == len(found) else {}


def _list(ports: Sequence[_Port]) -> str:
    return ", ".join(f"{p.name} {p.address}/{p.network.prefixlen}" for p in ports) or "none"


def _rate(mbit: int) -> str:
    return speed(mbit) if mbit else "speed unknown"
