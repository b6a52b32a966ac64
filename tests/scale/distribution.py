"""How long weights take to all hosts: `Tree` as the rollout drives it, copies on a clock of the simulation.

A source's link is shared evenly by the copies that leave it, a target's link and one ssh stream bound each.
"""

import heapq
from dataclasses import dataclass, field

from provision.rollout.tree import Copied, Tree
from tests.scale.parameters import Copy

__all__ = ["Spread", "simulate"]


@dataclass
class Spread:
    """``seconds`` until the last host has a verified copy; ``deepest``: copies between it and the hub."""

    seconds: float
    most_at_once: int
    deepest: int
    copies: int


@dataclass
class _Flow:
    source: str
    left: float
    since: float
    rate: float = 0.0
    version: int = 0


@dataclass
class _Wire:
    """Copies in transfer. ``events``: (time, order, kind, target, version)."""

    link: float
    cap: float
    size: float
    flows: dict[str, _Flow] = field(default_factory=dict)
    leaving: dict[str, set[str]] = field(default_factory=dict)
    events: list[tuple[float, int, str, str, int]] = field(default_factory=list)
    order: int = 0

    def at(self, when: float, kind: str, target: str, version: int = 0) -> None:
        self.order += 1
        heapq.heappush(self.events, (when, self.order, kind, target, version))

    def begin(self, now: float, source: str, target: str) -> None:
        self.flows[target] = _Flow(source, self.size, now)
        self.leaving.setdefault(source, set()).add(target)
        self._share(now, source)

    def finish(self, now: float, target: str) -> None:
        source = self.flows.pop(target).source
        self.leaving[source].remove(target)
        self._share(now, source)

    def _share(self, now: float, source: str) -> None:
        """The source's copies get their share from now on, and each a new time at which it is through."""
        mine = self.leaving[source]
        for target in sorted(mine):
            f = self.flows[target]
            f.left -= (now - f.since) * f.rate
            f.since, f.rate, f.version = now, min(self.link / len(mine), self.cap), f.version + 1
            self.at(now + f.left / f.rate, "through", target, f.version)


def simulate(
    hosts: int, size: float, link: float, known: Copy, *, fanout: int = 2, width: int = 256
) -> Spread:
    """One seed takes ``size`` bytes over its link of ``link`` bytes a second, the tree brings them to all."""
    names = [f"gpu{n:05}" for n in range(hosts)]
    wire = _Wire(link, known.stream_mb_s * 1e6, size)
    verify = size / (known.verify_mb_s * 1e6)
    now = size / link + verify
    tree = Tree(names[:1], names[1:], fanout=fanout)
    depth = {names[0]: 1}
    giver: dict[str, str] = {}
    most = 0
    while tree.waiting or tree.busy:
        while len(tree.busy) < width and (pair := tree.next()):
            giver[pair[1]] = pair[0]
            wire.at(now + known.start_s, "start", pair[1])
        most = max(most, len(tree.busy))
        now, _, kind, target, version = heapq.heappop(wire.events)
        if kind == "start":
            wire.begin(now, giver[target], target)
        elif kind == "through" and target in wire.flows and wire.flows[target].version == version:
            wire.finish(now, target)
            wire.at(now + verify, "verified", target)
        elif kind == "verified":
            tree.ended(giver[target], target, Copied.OK)
            depth[target] = depth[giver[target]] + 1
    return Spread(now, most, max(depth.values()), len(giver))
