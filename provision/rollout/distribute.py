"""The weights of a rollout: one seed a model takes it from its source, the tree brings it to the others."""

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from inventory.errors import EyasError
from inventory.model import Deployment, Host, ModelRef
from provision import layout
from provision.converge import Options as ConvergeOptions
from provision.fleet import each_host
from provision.observe import probe
from provision.rollout.plan import Member, Options
from provision.rollout.tree import Copied, spread
from provision.rollout.weights import CopyKey, allow, copy_key, copy_weights, forget
from provision.shell import Shell
from provision.weights import Manifest, manifest_of

__all__ = ["WIDTH", "Distribution"]

#: Copies at once, at least: their bytes go from host to host, each costs this machine a waiting thread. With
#: the forks of a rollout a fleet of a thousand would be fed twenty at a time, whatever the tree could do.
WIDTH = 256


class Hands(Protocol):
    """What the distribution needs of the crew."""

    options: Options
    converge: ConvergeOptions
    say: Callable[[str, str], None]

    def shell(self, host: Host) -> Shell: ...
    def prepare(self, member: Member, *, until_weights: bool = False) -> None: ...


class Distribution:
    """One run. ``members`` need weights perhaps; ``fleet`` may have them already."""

    def __init__(self, hands: Hands, members: list[Member], fleet: list[Member]) -> None:
        self.hands = hands
        self.members = {m.name: m for m in members if m.weight_bytes}
        self.fleet = {m.name: m for m in fleet if m.state != "unreachable"} | self.members
        self._logins: dict[str, str] = {}
        self._locks = {name: threading.Lock() for name in self.fleet}

    def run(self) -> None:
        """Never raises for what hosts or hub do: a host that gets nothing here gets it by its own prepare."""
        if len(self.members) < 2:
            return
        try:
            self._run()
        except EyasError as e:
            self.hands.say("", f"no copying from host to host: {e.message}")

    def _run(self) -> None:
        models = self._models()
        have = self._look(models)
        able = {name for name, (tools, _) in have.items() if tools}
        seeds = self._seeds(models, have)
        others = [m for m in self.members.values() if m.name not in seeds and m.name in able]
        self._each([*(self.members[s] for s in seeds), *others], lambda m: self._prepare(m, m.name in seeds))
        have = self._look(models)
        with copy_key() as key:
            try:
                for folder, (manifest, wanted) in models.items():
                    self._spread_one(key, manifest, folder, wanted & able, have, able)
            finally:
                self._each([self.fleet[n] for n in able], lambda m: self._forget(m, key))

    def _prepare(self, m: Member, whole: bool) -> None:
        with contextlib.suppress(EyasError):  # the loop prepares it again and tells
            self.hands.prepare(m, until_weights=not whole)

    def _models(self) -> dict[str, tuple[Manifest, set[str]]]:
        """Folder -> what it is, and the hosts that want it. Each model is asked about once."""
        found: dict[str, tuple[Manifest, set[str]]] = {}
        asked: dict[str, Manifest] = {}
        sources = self.hands.converge.sources
        for m in self.members.values():
            d = m.as_deployment()
            for ref in _refs(d):
                key = ref.model_dump_json()
                if key not in asked:
                    asked[key] = manifest_of(
                        ref, endpoint=sources.endpoint, token=sources.secrets.read(d.hub_token)
                    )
                found.setdefault(asked[key].folder, (asked[key], set()))[1].add(m.name)
        return found

    def _look(self, models: Iterable[str]) -> dict[str, tuple[bool, set[str]]]:
        """Host -> (has rsync and rrsync, its complete folders). A host that can't be asked is absent."""
        found: dict[str, tuple[bool, set[str]]] = {}

        def one(m: Member) -> None:
            with contextlib.suppress(EyasError):
                shell = self.hands.shell(m.as_host())
                got = shell.run(
                    ("sh", "-c", "command -v rsync && command -v rrsync"), timeout=20, check=False
                )
                listed = probe(shell).value("eyas.weights", list) or []
                there = {f"{layout.STATE}/weights/{w['id']}" for w in listed if w.get("complete") is True}
                found[m.name] = (got.ok, there & set(models))

        self._each(self.fleet.values(), one)
        return found

    def _seeds(
        self, models: dict[str, tuple[Manifest, set[str]]], have: dict[str, tuple[bool, set[str]]]
    ) -> set[str]:
        """One host for each model that no host has, as few hosts as possible."""
        seeds: set[str] = set()
        for folder, (_, wanted) in models.items():
            if any(ok and folder in there for ok, there in have.values()) or wanted & seeds:
                continue
            able = [n for n in self.members if n in wanted and have.get(n, (False, set()))[0]]
            seeds |= set(able[:1])
        return seeds

    def _spread_one(
        self,
        key: CopyKey,
        manifest: Manifest,
        folder: str,
        wanted: set[str],
        have: dict[str, tuple[bool, set[str]]],
        able: set[str],
    ) -> None:
        sources = [n for n in self.fleet if n in able and folder in have.get(n, (False, set()))[1]]
        targets = [n for n in self.members if n in wanted and n not in sources]
        if not sources or not targets:
            return
        width = max(self.hands.options.forks, WIDTH)
        done, missed = spread(
            sources, targets, lambda s, t: self._copy(key, manifest, s, t), forks=min(width, len(targets))
        )
        note = f"; not to {', '.join(sorted(missed))}" if missed else ""
        self.hands.say("", f"{manifest.ref.label}: copied to {len(done) - len(sources)} hosts{note}")

    def _copy(self, key: CopyKey, manifest: Manifest, source: str, target: str) -> Copied:
        try:
            giver = self.hands.shell(self.fleet[source].as_host())
            with self._locks[source]:
                if source not in self._logins:
                    self._logins[source] = allow(giver, key)
        except EyasError:
            return Copied.SOURCE
        try:
            taker = self.hands.shell(self.fleet[target].as_host())
        except EyasError:
            return Copied.TARGET
        return copy_weights(
            taker, giver, self._logins[source], key, manifest, lambda text: self.hands.say(target, text)
        )

    def _forget(self, m: Member, key: CopyKey) -> None:
        try:
            forget(self.hands.shell(m.as_host()), key)
        except EyasError as e:
            self.hands.say(
                m.name, f"the key {key.name} could not be removed ({e.message}); it expires by itself"
            )

    def _each(self, members: Iterable[Member], work: Callable[[Member], None]) -> None:
        byname = {m.name: m for m in members}
        hosts = [m.as_host() for m in byname.values()]
        each_host(hosts, lambda h: work(byname[h.name]), forks=self.hands.options.forks)


def _refs(d: Deployment) -> list[ModelRef]:
    return [d.target, *([d.draft.model] if d.draft.model else [])]
