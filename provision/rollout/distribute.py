"""Weights and wheels of a rollout: one seed takes each from its source, the tree brings it to the others."""

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from inventory.errors import EyasError
from inventory.locks import WheelLock, read_lock
from inventory.model import Deployment, ModelRef
from provision import layout
from provision.converge import Options as ConvergeOptions
from provision.fleet import each_host
from provision.observe import probe
from provision.rollout.copykey import CopyKey, copy_key, sweep
from provision.rollout.goods import Goods, carry
from provision.rollout.plan import Member, Options
from provision.rollout.tree import Copied, spread
from provision.shell import Shell
from provision.weights import Manifest, manifest_of, verify_copy
from provision.wheelhouse import wheelhouse_of
from provision.wheels import WHOLE, bring_wheels, verify_wheels

__all__ = ["WIDTH", "Distribution"]

#: Copies at once, at least: their bytes go from host to host, each costs this machine a waiting thread. With
#: the forks of a rollout a fleet of a thousand would be fed twenty at a time, whatever the tree could do.
WIDTH = 256

WEIGHTS = f"{layout.STATE}/weights"
WHEELS = f"{layout.ROOT}/wheelhouse"
_HOUSES = f'for f in {WHEELS}/*/{WHOLE}; do [ ! -f "$f" ] || dirname "$f"; done'


Say = Callable[[str], None]


class Hands(Protocol):
    """What the distribution needs of the crew."""

    options: Options
    converge: ConvergeOptions
    say: Callable[[str, str], None]

    def at(self, member: Member) -> AbstractContextManager[Shell]: ...
    def note(self, event: str, **words: object) -> None: ...
    def prepare(self, member: Member, *, until_weights: bool = False) -> None: ...


@dataclass(frozen=True)
class _Wanted:
    """Goods, the hosts that want them, and how the first gets them (None: by its own prepare)."""

    goods: Goods
    hosts: set[str] = field(default_factory=set)
    bring: Callable[[Shell, Say], None] | None = None


class Distribution:
    """One run. ``members`` need something perhaps; ``fleet`` may have it already."""

    def __init__(self, hands: Hands, members: list[Member], fleet: list[Member]) -> None:
        self.hands = hands
        self.members = {m.name: m for m in members if m.weight_bytes or m.wheel_bytes}
        self.fleet = {m.name: m for m in fleet if m.state != "unreachable"} | self.members
        self._able: set[str] = set()

    def run(self) -> None:
        """Never raises for what hosts or hub do: a host that gets nothing here gets it by its own prepare."""
        if not self.members or len(self.fleet) < 2:
            return
        try:
            self._sweep("")
            self._share(self._wheels())
            weights = self._weights()
            self._share(weights, self._prepare_around(weights))
        except EyasError as e:
            self.hands.say("", f"no copying from host to host: {e.message}")

    # ---- what there is to bring

    def _wheels(self) -> list[_Wanted]:
        """A wheelhouse for each lock; the lock is the copy that the plan keeps."""
        found: dict[str, _Wanted] = {}
        for m in self.members.values():
            path = m.deployment.get("lock")
            if not m.wheel_bytes or not path:
                continue
            if path not in found:
                lock = read_lock(Path(path))
                goods = Goods(
                    f"wheels {lock.id[:16]}", WHEELS, layout.wheelhouse_dir(lock.id), _verifier(lock)
                )
                found[path] = _Wanted(goods, bring=self._bringer(lock, m))
            found[path].hosts.add(m.name)
        return list(found.values())

    def _bringer(self, lock: WheelLock, m: Member) -> Callable[[Shell, Say], None]:
        sources, push = self.hands.converge.sources, m.as_deployment().wheels_from == "push"

        def bring(shell: Shell, say: Say) -> None:
            house = wheelhouse_of(lock, sources.wheelhouse).fetched(say) if push else None
            bring_wheels(shell, lock, say, pushed=house, index_url=shell.host.vars.get("eyas_index_url"))

        return bring

    def _weights(self) -> list[_Wanted]:
        """Each model is asked about once."""
        found: dict[str, _Wanted] = {}
        asked: dict[str, Manifest] = {}
        sources = self.hands.converge.sources
        for m in (m for m in self.members.values() if m.weight_bytes):
            d = m.as_deployment()
            for ref in _refs(d):
                key = ref.model_dump_json()
                if key not in asked:
                    asked[key] = manifest_of(
                        ref, endpoint=sources.endpoint, token=sources.secrets.read(d.hub_token)
                    )
                goods = Goods(asked[key].ref.label, WEIGHTS, asked[key].folder, _checker(asked[key]))
                found.setdefault(goods.folder, _Wanted(goods)).hosts.add(m.name)
        return list(found.values())

    # ---- who has it, who brings it, who copies

    def _share(self, wanted: list[_Wanted], bring: Callable[[set[str]], None] | None = None) -> None:
        """``bring``: given the seeds, makes everything ready for the copies. Default: each seed's own way."""
        if not wanted:
            return
        seeds = self._seeds(wanted, self._have(wanted))
        if bring:
            bring(seeds)
        else:
            self._each((self.members[s] for s in seeds), lambda m: self._bring(m, wanted))
        have = self._have(wanted)
        for one in wanted:
            self._spread(one, {n for n, there in have.items() if one.goods.folder in there})

    def _seeds(self, wanted: list[_Wanted], have: dict[str, set[str]]) -> set[str]:
        """One host for each thing that no host has, as few hosts as possible."""
        seeds: set[str] = set()
        for one in wanted:
            had = any(one.goods.folder in have.get(n, ()) for n in self._able)
            if had or one.hosts & seeds or len(one.hosts) == 1:
                continue
            seeds |= set([n for n in self.members if n in one.hosts & self._able][:1])
        return seeds

    def _bring(self, m: Member, wanted: list[_Wanted]) -> None:
        for one in wanted:
            if one.bring and m.name in one.hosts:
                try:
                    with self.hands.at(m) as shell:
                        one.bring(shell, lambda text: self.hands.say(m.name, text))
                except EyasError as e:
                    self.hands.say(m.name, f"{one.goods.label}: not brought here first: {e.message}")

    def _prepare_around(self, wanted: list[_Wanted]) -> Callable[[set[str]], None]:
        """Seeds prepare to the end, the others of these hosts up to their weights."""
        concerned = set().union(*(one.hosts for one in wanted)) & self._able

        def prepare(m: Member, whole: bool) -> None:
            with contextlib.suppress(EyasError):  # the loop prepares it again and tells
                self.hands.prepare(m, until_weights=not whole)

        return lambda seeds: self._each(
            (m for m in self.members.values() if m.name in concerned), lambda m: prepare(m, m.name in seeds)
        )

    def _spread(self, one: _Wanted, have: set[str]) -> None:
        sources = [n for n in self.fleet if n in self._able & have]
        targets = [n for n in self.members if n in (one.hosts & self._able) - have]
        if not sources or not targets:
            return
        with copy_key() as key:
            try:
                done, missed = spread(
                    sources,
                    targets,
                    lambda source, target: self._copy(key, one.goods, source, target),
                    forks=min(max(self.hands.options.forks, WIDTH), len(targets)),
                )
            finally:
                self._sweep(key.name)
        copied = sorted(done - set(sources))
        note = f"; not to {', '.join(sorted(missed))}" if missed else ""
        self.hands.say("", f"{one.goods.label}: copied to {len(copied)} hosts{note}")
        self.hands.note("copied", what=one.goods.label, sources=sources, hosts=copied, missed=sorted(missed))

    def _copy(self, key: CopyKey, goods: Goods, source: str, target: str) -> Copied:
        try:
            with self.hands.at(self.fleet[source]) as giver, self.hands.at(self.fleet[target]) as taker:
                return carry(giver, taker, key, goods, lambda text: self.hands.say(target, text))
        except EyasError as e:
            self.hands.say(target, f"{goods.label}: {e.message}")
            return Copied.SOURCE if e.host == source else Copied.TARGET

    # ---- looking

    def _have(self, wanted: list[_Wanted]) -> dict[str, set[str]]:
        """Host -> which of these it has whole. A host that can't be asked is absent."""
        found: dict[str, set[str]] = {}
        folders = {one.goods.folder for one in wanted}

        def one(m: Member) -> None:
            with contextlib.suppress(EyasError), self.hands.at(m) as shell:
                listed = probe(shell).value("eyas.weights", list) or []
                there = {f"{WEIGHTS}/{w['id']}" for w in listed if w.get("complete") is True}
                there |= set(shell.run(("sh", "-c", _HOUSES), timeout=20).stdout.split())
                found[m.name] = there & folders

        self._each((m for m in self.fleet.values() if m.name in self._able), one)
        return found

    def _sweep(self, name: str) -> None:
        """On every host: keys of runs that are over, and the one of this name. Notes who can copy."""

        def one(m: Member) -> None:
            for last in (False, True):  # a connection that broke meanwhile is made anew
                try:
                    with self.hands.at(m) as shell:
                        if sweep(shell, name):
                            self._able.add(m.name)
                except EyasError as e:
                    if name and last:
                        self.hands.say(m.name, f"{e.message}: the host itself takes away the key {name}")
                else:
                    return

        self._each((m for m in self.fleet.values() if not name or m.name in self._able), one)

    def _each(self, members: Iterable[Member], work: Callable[[Member], None]) -> None:
        byname = {m.name: m for m in members}
        hosts = [m.as_host() for m in byname.values()]
        each_host(hosts, lambda h: work(byname[h.name]), forks=self.hands.options.forks)


def _verifier(lock: WheelLock) -> Callable[[Shell, Say], None]:
    return lambda shell, say: verify_wheels(shell, lock, say)


def _checker(m: Manifest) -> Callable[[Shell, Say], None]:
    return lambda shell, say: verify_copy(shell, m, say)


def _refs(d: Deployment) -> list[ModelRef]:
    return [d.target, *([d.draft.model] if d.draft.model else [])]
