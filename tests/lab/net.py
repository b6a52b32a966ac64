"""The lab's own network: a bridge in its own namespace, hosts on it, and one wire to the operator.

::

    operator's namespace                 netns eyas.LAB               netns eyas.LAB.HOST
    eyasN 10.(77+N).0.1, .0.2  <-veth->  op -- bridge br0 -- h<n> <-veth-> eth0 10.(77+N).1.<n>

eyas and plain ssh run where the operator is and need no netns command. There is no default route anywhere
in the lab, forwarding is off on the operator's end of the wire and IPv6 is off, so a host reaches the
bridge and the operator's two addresses only. ``.0.1`` is the operator (hub, mirror), ``.0.2`` a second
address for what a hub would redirect to. The bridge has a namespace of its own so that a firewall of the
machine which filters bridged or forwarded traffic (Docker's does) doesn't cut hosts off from each other.
"""

import json
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from inventory.errors import ChangeFailed, CheckRefused

__all__ = ["PREFIX", "Network", "free_index", "netns_names"]

MAX_LABS = 30
PREFIX = "eyas."


def _ip(*args: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise ChangeFailed(
            f"ip {' '.join(args)}: {done.stderr.strip()}", hint="invoke lab down, then up again"
        )
    return done.stdout


def _batch(lines: Iterable[str], netns: str = "") -> None:
    """Many ip commands in one process, each as if it were typed alone; the first failure stops."""
    text = "\n".join(lines) + "\n"
    argv = ["ip", *(["-n", netns] if netns else []), "-batch", "-"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChangeFailed(f"ip -batch: {done.stderr.strip()}", hint="invoke lab down, then up again")


def netns_names() -> set[str]:
    folder = Path("/run/netns")
    return {p.name for p in folder.iterdir()} if folder.is_dir() else set()


def free_index(taken: set[int]) -> int:
    """The first lab number whose subnet neither another lab nor a route of this machine uses."""
    routes = {
        str(r.get("dst", "")) for r in json.loads(_ip("-json", "-4", "route", "show", "table", "all") or "[]")
    }
    for index in range(MAX_LABS):
        net = f"10.{77 + index}."
        if index not in taken and not any(r.startswith(net) for r in routes):
            return index
    raise CheckRefused(f"no free subnet in 10.77-{76 + MAX_LABS}.0.0/16", hint="invoke lab down --all")


class Network:
    """Namespaces, bridge and wires of the lab ``name`` with subnet number ``index``. All calls idempotent."""

    def __init__(self, name: str, index: int) -> None:
        self.netns = f"{PREFIX}{name}"
        self.wire = f"eyas{index}"
        self.base = f"10.{77 + index}"
        self.gateway = f"{self.base}.0.1"
        self.alias = f"{self.base}.0.2"

    def address(self, number: int) -> str:
        """Host ``number`` (from 0) of this lab."""
        return f"{self.base}.{1 + number // 250}.{1 + number % 250}"

    def host_netns(self, host: str) -> str:
        return f"{self.netns}.{host}"

    def up(self) -> None:
        if self.netns in netns_names() and self.wire in self._links():
            return
        self.down()
        self._drop_wire()
        _ip("netns", "add", self.netns)
        _batch(
            [
                "link set lo up",
                "link add br0 type bridge",
                "link set br0 up",
            ],
            self.netns,
        )
        _ip("link", "add", self.wire, "type", "veth", "peer", "name", "op", "netns", self.netns)
        for key in ("ipv4/conf/{}/forwarding=0", "ipv6/conf/{}/disable_ipv6=1"):
            path, _, value = key.format(self.wire).partition("=")
            with suppress(OSError):  # a kernel without IPv6
                Path("/proc/sys/net", path).write_text(value)
        _ip("-n", self.netns, "link", "set", "op", "master", "br0", "up")
        _batch(
            [
                f"addr add {self.gateway}/16 dev {self.wire}",
                f"addr add {self.alias}/16 dev {self.wire}",
                f"link set {self.wire} up",
            ]
        )

    def _links(self) -> set[str]:
        return {link["ifname"] for link in json.loads(_ip("-json", "link", "show"))}

    def add_host(self, host: str, number: int) -> None:
        netns = self.host_netns(host)
        if netns in netns_names():
            return
        _ip("netns", "add", netns)
        _ip(
            *("-n", self.netns, "link", "add", f"h{number}"),
            *("type", "veth", "peer", "name", "eth0", "netns", netns),
        )
        _ip("-n", self.netns, "link", "set", f"h{number}", "master", "br0", "up")
        _batch(
            ["link set lo up", f"addr add {self.address(number)}/16 dev eth0", "link set eth0 up"],
            netns,
        )

    def remove_host(self, host: str) -> None:
        if self.host_netns(host) in netns_names():
            _ip("netns", "del", self.host_netns(host))

    def down(self) -> None:
        """Every namespace of the lab and its wire, also those of hosts nobody remembers.

        A lab that is gone has no wire: one of that name is another's, which got the number after it.
        """
        mine = [n for n in netns_names() if n == self.netns or n.startswith(f"{self.netns}.")]
        for name in sorted(mine):
            _ip("netns", "del", name)
        if self.netns in mine:
            self._drop_wire()

    def _drop_wire(self) -> None:
        if self.wire in self._links():
            _ip("link", "del", self.wire, check=False)  # it may have gone with its other end meanwhile

    # ---- faults on one host's wire -------------------------------------------------------------------

    def set_link(self, number: int, up: bool) -> None:
        if self.netns in netns_names():  # or it is the wire of a lab half gone
            _ip("-n", self.netns, "link", "set", f"h{number}", "up" if up else "down", check=up)

    def limit_rate(self, host: str, number: int, mbit: float | None) -> None:
        """Hold what the host receives, and what it sends, to ``mbit`` each; None lifts it."""
        rate = [
            "tbf",
            "rate",
            f"{max(1, round((mbit or 0) * 1000))}kbit",
            "burst",
            "16kb",
            "latency",
            "400ms",
        ]
        self._queue(host, number, rate if mbit is not None else None)

    def delay(self, host: str, number: int, ms: float | None) -> None:
        """Hold every packet back for ``ms`` in each direction; None lifts it. Needs the kernel's netem."""
        self._queue(host, number, ["netem", "delay", f"{ms:g}ms"] if ms is not None else None)

    def _queue(self, host: str, number: int, discipline: list[str] | None) -> None:
        for netns, device in ((self.netns, f"h{number}"), (self.host_netns(host), "eth0")):
            tc = ["tc", "-n", netns, "qdisc"]
            subprocess.run([*tc, "del", "dev", device, "root"], capture_output=True, check=False)
            if discipline:
                done = subprocess.run(
                    [*tc, "add", "dev", device, "root", *discipline],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise CheckRefused(
                        f"this kernel has no {discipline[0]} queue: {done.stderr.strip()}",
                        hint=f"modprobe sch_{discipline[0]}, or leave this fault out",
                    )
