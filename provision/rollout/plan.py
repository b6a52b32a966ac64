"""What a rollout will do, resolved once and kept: it holds after a crash and with an edited inventory."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from inventory.errors import InventoryError
from inventory.model import Deployment, Host

__all__ = ["Member", "Options", "Plan", "host_words"]

SCHEMA = 1
#: Of a host's variables only these are needed to reach it again; the others may be secrets.
_KEPT = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_private_key_file")
_KEPT_TOO = ("ansible_private_key_file", "eyas_index_url")


def host_words(host: Host) -> dict[str, Any]:
    """A host as it goes into the journal: how to reach it, no variable that could be a password."""
    kept = {k: v for k, v in host.vars.items() if k in {*_KEPT, *_KEPT_TOO}}
    return {**host.model_dump(exclude={"vars"}, exclude_unset=True), "vars": kept}


@dataclass(frozen=True)
class Member:
    """One host of the rollout.

    state: ``pending`` (to be switched), ``prepare`` (only harmless changes), ``same``, ``unreachable``,
    ``refused``. want, former: release ids; ``baseline``: release whose recorded proof on this very host the
    new one is compared with. weight_bytes, wheel_bytes: still to come; ``why``: of a state that isn't good.
    """

    host: dict[str, Any]
    deployment: dict[str, Any]
    state: str
    want: str = ""
    former: str | None = None
    baseline: str | None = None
    timeout_start_s: int = 1020
    baseline_key: str = ""
    changes: tuple[str, ...] = ()
    weight_bytes: int = 0
    wheel_bytes: int = 0
    model_bytes: int = 0
    why: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()
    #: Of several hosts that serve as one: ranks 1 and up, each {host, deployment}; this member is rank 0.
    peers: tuple[dict[str, Any], ...] = ()

    def parts(self) -> "tuple[Member, ...]":
        """One member a host, rank 0 first; a host that serves alone is its only part."""
        mine = replace(self, peers=())
        return (mine, *(replace(mine, host=p["host"], deployment=p["deployment"]) for p in self.peers))

    @property
    def name(self) -> str:
        return str(self.host["name"])

    @property
    def moves(self) -> bool:
        return self.state == "pending"

    def as_host(self) -> Host:
        return Host(**self.host)

    def as_deployment(self) -> Deployment:
        return Deployment(**self.deployment)


@dataclass(frozen=True)
class Options:
    """How to go about it. ``max_fail``: the run stops when so many hosts have failed; pause in seconds."""

    canary: str = "1"
    serial: str = "25%"
    max_fail: int = 1
    pause_s: float = 0
    forks: int = 20
    ttft_percent: float = 50
    speed_percent: float = 25
    acceptance_percent: float = 15
    drain: str = ""
    restore: str = ""
    drain_s: float = 300
    back_s: float = 300
    #: The host (host_words) whose router takes each host out around its switch and puts it back.
    router: dict[str, Any] | None = None


@dataclass(frozen=True)
class Plan:
    """``kind``: rollout or rollback; ``fleet``: the inventory this is one rollout of."""

    id: str
    kind: str
    fleet: str
    members: tuple[Member, ...]
    options: Options = field(default_factory=Options)

    def with_members(self, members: Mapping[str, Member]) -> "Plan":
        return replace(self, members=tuple(members.get(m.name, m) for m in self.members))

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, source: str) -> "Plan":
        if data.get("schema") != SCHEMA:
            raise InventoryError(
                f"{source} was written by another eyas (schema {data.get('schema')}, not {SCHEMA})",
                hint="finish it with the eyas that began it",
            )
        known = {f.name for f in fields(Member)}
        members = []
        for raw in data["members"]:
            words: dict[str, Any] = {k: v for k, v in raw.items() if k in known}
            words.update({k: tuple(words.get(k, ())) for k in ("changes", "notes", "peers")})
            members.append(Member(**words))
        return cls(data["id"], data["kind"], data["fleet"], tuple(members), Options(**data["options"]))
