"""Before a switch: every rank opens connections to every other, at the ports that the group will use."""

import json
import threading
from collections.abc import Mapping

from inventory.errors import CheckRefused, HostUnreachable
from provision import layout
from provision.nodes.ranks import Rank, each_rank
from provision.programs import program

__all__ = ["refuse_unreachable"]

CONNECT_S = 5


def refuse_unreachable(ranks: list[Rank]) -> None:
    """Raise GroupStopped unless every rank reaches every other; the report of the one that can't says why."""
    meeting = _Meeting(ranks)
    each_rank(ranks, meeting.attend)


class _Meeting:
    """All listen first, then all connect, then all leave: three barriers."""

    def __init__(self, ranks: list[Rank]) -> None:
        group = ranks[0].wanted().group
        self.addresses = {m["host"]: m["address"] for m in group["members"]}
        self.ports = [group["port"] - 1, group["port"]]
        self.listening: dict[str, dict[str, str]] = {}
        self.barrier = threading.Barrier(len(ranks), timeout=60)

    def attend(self, rank: Rank) -> None:
        others = {h: a for h, a in self.addresses.items() if h != rank.name}
        told = {
            "address": self.addresses[rank.name],
            "ports": self.ports,
            "peers": others,
            "seconds": CONNECT_S,
        }
        argv = ("python3", "-I", "-c", program("reach.py").decode(), json.dumps(told))
        try:
            with rank.shell.session(argv) as session:
                self.listening[rank.name] = _listening(session.readline(timeout=20), rank)
                self.barrier.wait()
                session.send(json.dumps({h: self.listening[h] for h in others}).encode() + b"\n")
                found: dict[str, str] = json.loads(session.readline(timeout=30) or "{}")
                self.barrier.wait()
        except threading.BrokenBarrierError as e:
            raise HostUnreachable("the other ranks could not be tried", host=rank.name) from e
        except BaseException:
            self.barrier.abort()
            raise
        bad = {k: v for k, v in found.items() if v != "ok"}
        if bad or len(found) != sum(len(self.listening[h]) for h in others):
            raise CheckRefused(self._sentence(rank, bad), hint=_hint(rank, bad), host=rank.name)

    def _sentence(self, rank: Rank, bad: Mapping[str, str]) -> str:
        told = []
        for where, why in sorted(bad.items()):
            host, port = where.rsplit(" ", 1)
            told.append(f"{host} ({self.addresses[host]}) port {port}: {why}")
        own = f"{self.addresses[rank.name]} on {_interface(rank)}"
        return f"rank-unreachable: from {own} to {'; '.join(told) or 'the others: no answer'}"


def _listening(line: str, rank: Rank) -> dict[str, str]:
    if not line.startswith("listening "):
        raise HostUnreachable(f"the ports could not be tried: {line or 'no answer'}", host=rank.name)
    ports: dict[str, str] = json.loads(line[len("listening ") :])
    unusable = {p: how for p, how in ports.items() if how not in {"free", "busy"}}
    if unusable:
        told = ", ".join(f"{p}: {how}" for p, how in unusable.items())
        raise CheckRefused(
            f"rank-unreachable: nobody can listen here ({told})",
            hint="look at master_port and the chosen interface's address",
            host=rank.name,
        )
    _refuse_strangers(rank, {int(p) for p, how in ports.items() if how == "busy"})
    return ports


def _refuse_strangers(rank: Rank, busy: set[int]) -> None:
    """A busy port is ours while the group serves; anybody else's would show only in a failed start."""
    unit = layout.unit_name(rank.deployment.name)
    for told in rank.seen().value("ports", list) or []:
        if told.get("port") in busy and not str(told.get("unit") or "").startswith(unit):
            who = told.get("unit") or told.get("process") or "another program"
            raise CheckRefused(
                f"port-in-use: port {told['port']}, which the group needs, is taken by {who}",
                hint="set master_port, or stop what listens there",
                host=rank.name,
            )


def _interface(rank: Rank) -> str:
    group = rank.wanted().group
    return next(str(m["interface"]) for m in group["members"] if m["host"] == rank.name)


def _hint(rank: Rank, bad: Mapping[str, str]) -> str:
    hosts = sorted({k.rsplit(" ", 1)[0] for k in bad})
    return (
        f"let {rank.name} reach {' and '.join(hosts) or 'the others'} on all ports "
        "(engines use high ones besides master_port), or choose another interface"
    )
