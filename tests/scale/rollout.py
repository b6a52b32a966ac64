"""A rollout of many hosts by the product's own loop, plan and journal; the hosts are made up and do as told.

Run as ``python -m tests.scale.rollout HOSTS [--die-at N]``: in a process of its own, for its memory.
"""

import argparse
import contextlib
import json
import resource
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inventory.model import Deployment, Draft, Host, ModelRef
from provision.rollout.batches import batches
from provision.rollout.gate import Verdict
from provision.rollout.loop import Rollout
from provision.rollout.plan import Member, Options, Plan, host_words
from provision.rollout.record import Record, newest_unfinished
from provision.rollout.tables import estimated_minutes

__all__ = ["Crew", "Died", "loop_of", "plan_of", "simulate"]

SERIAL = "1%,5%,25%"


class Died(BaseException):
    """The operator's process ends here."""


@dataclass
class Crew:
    """Hosts that do what they are told, at once. ``die_at``: the operator dies at the so-many-th switch."""

    die_at: int = 0
    served: dict[str, str] = field(default_factory=dict)
    switches: int = 0

    def resolve(self, member: Member) -> Member:
        return member

    def spread(self, members: list[Member], fleet: list[Member]) -> None: ...
    def prepare(self, member: Member) -> None: ...
    def ready(self, member: Member) -> None: ...
    def drain(self, member: Member) -> None: ...
    def restore(self, member: Member) -> None: ...
    def withdraw(self, member: Member) -> None: ...
    def back(self, member: Member) -> None: ...

    def serve(self, member: Member, release: str) -> None:
        self.switches += 1
        if self.switches == self.die_at:
            raise Died
        self.served[member.name] = release

    def gate(self, member: Member, release: str, baseline: str | None) -> Verdict:
        proof = {"ttft_ms": 181.2, "tokens_per_s": 143.7, "acceptance": 0.71, "release": release}
        return Verdict(proof=proof)


def plan_of(hosts: int, *, forks: int = 20) -> Plan:
    """A plan with all that a real one holds of each host."""
    d = Deployment(
        name="coder", engine="vllm", target=ModelRef(repo="example/Coder-32B", revision="0" * 40),
        draft=Draft(method="eagle3", model=ModelRef(repo="example/Coder-32B-EAGLE3", revision="1" * 40)),
    ).model_dump(mode="json")  # fmt: skip
    changes = ("environment", "download example/Coder-32B", "release 0123456789ab", "switch to 0123456789ab")
    members = []
    for n in range(hosts):
        host = Host(name=f"gpu{n:05}", address=f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", user="ops")
        former = "ba9876543210"
        blank = Member(host_words(host), d, "pending", "0123456789ab", former, former)
        members.append(replace(blank, changes=changes, weight_bytes=65 << 30))
    options = Options(serial=SERIAL, forks=forks)
    return Plan(Record.new_id(), "rollout", "fleet.yml", tuple(members), options)


def simulate(hosts: int, folder: Path, *, die_at: int = 0) -> dict[str, Any]:
    """Run it, and when the operator died go on as ``--resume`` does; sizes in bytes, times in seconds."""
    began = time.monotonic()
    plan = plan_of(hosts)
    record = Record.new(plan, folder)
    planned, size = time.monotonic() - began, record.path.stat().st_size
    crew = Crew(die_at)
    with contextlib.suppress(Died):
        loop_of(record, crew).run()
    ran = time.monotonic() - began - planned
    resumed = 0.0
    if die_at:
        again = time.monotonic()
        left = newest_unfinished(plan.fleet, folder)
        assert left is not None
        loop_of(left, crew).run()
        resumed = time.monotonic() - again
    done = {h for h, phase in Record(record.path).phases.items() if phase == "done"}
    if len(done) != hosts or set(crew.served.values()) != {"0123456789ab"}:
        raise RuntimeError(f"{len(done)} of {hosts} hosts are done")
    before, switching = estimated_minutes(plan)
    return {
        "hosts": hosts,
        "batches": len(batches(plan.members, plan.options.canary, plan.options.serial)),
        "plan_s": round(planned, 2),
        "plan_bytes": size,
        "loop_s": round(ran, 2),
        "resume_s": round(resumed, 2),
        "journal_bytes": record.path.stat().st_size,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "estimate_switch_min": round(switching, 1),
        "estimate_prepare_min": round(before, 1),
    }


def loop_of(record: Record, crew: Crew) -> Rollout:
    return Rollout(record, crew, lambda *_: None, sleep=lambda _: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", type=int)
    parser.add_argument("--die-at", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(simulate(args.hosts, Path(folder), die_at=args.die_at)))


if __name__ == "__main__":
    main()
