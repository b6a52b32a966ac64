"""Which commit a branch stands for: the one that the host serves already, else today's, asked once a run.

A branch in a deployment's file must not change what serves by itself. `invoke pin` writes a commit there.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from checks.facts import HostFacts
from inventory.model import Deployment, ModelRef
from provision.weights import Manifest

__all__ = ["Branches", "Found", "served_commit"]

Ask = Callable[[ModelRef], Manifest]


@dataclass(frozen=True)
class Found:
    """What a reference is made of; ``moved``: the commit its branch has now, when another one is served."""

    manifest: Manifest
    moved: str = ""

    def note(self, d: Deployment) -> str:
        """For people; empty where the file names a commit, or nothing that has any."""
        ref, commit = self.manifest.ref, self.manifest.commit
        if ref.pinned:
            return ""
        what = f"{ref.repo}: {ref.revision}"
        if self.moved:
            return (
                f"{what} has moved to {self.moved[:12]}; what is served stays: "
                f"invoke pin --deployment {d.name} takes the new one, revision: {commit} keeps this one"
            )
        return f"{what} is {commit[:12]} now; invoke pin --deployment {d.name} writes that into its file"


@dataclass
class Branches:
    """Answers of the hub, one a model and run: hosts of one run never get two commits of one branch."""

    _known: dict[tuple[object, ...], Manifest] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def find(self, role: str, ref: ModelRef, d: Deployment, facts: HostFacts, ask: Ask) -> Found:
        """``role``: target or draft. Raises what ``ask`` raises."""
        if ref.pinned:
            return Found(ask(ref))
        today = self._today(ref, d, ask)
        served = served_commit(facts, d.name, role, ref.label)
        if served is None or served == today.commit:
            return Found(today)
        kept = ask(ref.model_copy(update={"revision": served}))
        return Found(Manifest(ref, kept.commit, kept.files), moved=today.commit)

    def _today(self, ref: ModelRef, d: Deployment, ask: Ask) -> Manifest:
        key = (ref.repo, ref.revision, d.hub_token)
        with self._turn:
            if key not in self._known:
                self._known[key] = ask(ref)
            return self._known[key]


def served_commit(facts: HostFacts, deployment: str, role: str, label: str) -> str | None:
    """The commit that this host's served release names for the same model; None: it serves none."""
    current = (facts.value("eyas.current", dict) or {}).get(deployment)
    releases = facts.value("eyas.releases", list) or []
    weights = next((r.get("weights") for r in releases if r.get("id") == current), None)
    told = weights.get(role) if isinstance(weights, dict) else None
    if not isinstance(told, dict) or told.get("label") != label:
        return None
    commit = told.get("commit")
    return commit if isinstance(commit, str) and commit else None
