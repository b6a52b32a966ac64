"""Which hosts form a group, and who has which rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inventory.errors import InventoryError, UsageError
from inventory.model import Deployment, Host

__all__ = ["Group", "groups_of"]

#: What may differ between the hosts of a group: a core or a card to bind to, a network's name.
OWN = {"env", "interface"}


@dataclass(frozen=True)
class Group:
    """Hosts in rank order, and each one's deployment (equal but for `env` and `interface`)."""

    name: str
    hosts: tuple[Host, ...]
    deployments: Mapping[str, Deployment]

    @property
    def deployment(self) -> Deployment:
        """Rank 0's: what the group serves."""
        return self.deployments[self.hosts[0].name]


def groups_of(hosts: Sequence[Host], wanted: Mapping[str, Deployment]) -> tuple[list[Host], list[Group]]:
    """The hosts that serve alone, and the groups. ``hosts`` are in inventory order.

    A group is what `eyas_group` names, else an inventory group of just that many of these hosts, else all
    hosts of the deployment. Raises UsageError for hosts that are no whole group.
    """
    alone = [h for h in hosts if wanted[h.name].nodes == 1]
    several = [h for h in hosts if wanted[h.name].nodes > 1]
    found: list[Group] = []
    for name in dict.fromkeys(wanted[h.name].name for h in several):
        mine = [h for h in several if wanted[h.name].name == name]
        found += [_group(g, m, wanted) for g, m in _split(mine, wanted[mine[0].name]).items()]
    return alone, found


def _split(hosts: list[Host], d: Deployment) -> dict[str, list[Host]]:
    named = {str(h.vars["eyas_group"]) for h in hosts if h.vars.get("eyas_group")}
    if named:
        return {g or d.name: [h for h in hosts if str(h.vars.get("eyas_group") or "") == g] for g in
                dict.fromkeys(str(h.vars.get("eyas_group") or "") for h in hosts)}  # fmt: skip
    if len(hosts) == d.nodes:
        return {d.name: hosts}
    by: dict[str, list[Host]] = {}
    for h in hosts:
        for g in h.groups:
            by.setdefault(g, []).append(h)
    fitting = {g: m for g, m in by.items() if len(m) == d.nodes}
    members = [h.name for m in fitting.values() for h in m]
    if len(members) == len(set(members)) == len(hosts):
        return fitting
    raise UsageError(
        f"deployment {d.name} takes {d.nodes} nodes, and {_hosts(len(hosts))} selected "
        f"({', '.join(h.name for h in hosts)})",
        hint="select a whole group; with several groups give their hosts the variable eyas_group: NAME",
    )


def _hosts(count: int) -> str:
    return "1 host is" if count == 1 else f"{count} hosts are"


def _group(name: str, hosts: list[Host], wanted: Mapping[str, Deployment]) -> Group:
    d = wanted[hosts[0].name]
    if len(hosts) != d.nodes:
        raise UsageError(
            f"group {name} of deployment {d.name} has {len(hosts)} of {d.nodes} nodes "
            f"({', '.join(h.name for h in hosts)})",
            hint="select every host of the group, or mend eyas_group and nodes",
        )
    for h in hosts[1:]:
        differ = [
            k for k in type(d).model_fields if k not in OWN and getattr(wanted[h.name], k) != getattr(d, k)
        ]
        if differ:
            raise InventoryError(
                f"deployment {d.name} differs from {hosts[0].name}'s in {', '.join(differ)}",
                hint="eyas_overrides of one host of a group may set env and interface only",
                host=h.name,
            )
    return Group(name, _ranked(hosts, d), {h.name: wanted[h.name] for h in hosts})


def _ranked(hosts: list[Host], d: Deployment) -> tuple[Host, ...]:
    if d.head is None:
        return tuple(hosts)
    first = [h for h in hosts if h.name == d.head]
    if not first:
        raise InventoryError(
            f"head {d.head} of deployment {d.name} is none of its hosts ({', '.join(h.name for h in hosts)})",
            hint="head names the host of rank 0 as the inventory does",
        )
    return (*first, *(h for h in hosts if h.name != d.head))
