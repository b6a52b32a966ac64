"""`invoke doctor --host GROUP`: hosts that serve as one get one report, the earliest cause of all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from checks.doctor.group import Stopped, group_report, merge_journals, stopped
from checks.doctor.journal import latest_starts
from checks.doctor.model import Inputs, Report
from checks.facts import HostFacts
from checks.nodes.alike import compare, members_of
from checks.outcome import Outcome, Status
from inventory.errors import EyasError
from inventory.model import Host
from provision.looking import Seen, Sight, gather, host_rules

__all__ = ["group_reports"]


class Diagnosed(Protocol):
    """What provision.diagnosis.Diagnosed has for us."""

    @property
    def host(self) -> Host: ...
    @property
    def sight(self) -> Sight | None: ...
    @property
    def error(self) -> EyasError | None: ...


@dataclass(frozen=True)
class _Rank:
    number: int
    sight: Sight
    seen: Seen

    @property
    def group(self) -> Mapping[str, Any]:
        return dict(self.seen.release["group"])


def group_reports(found: Sequence[Diagnosed]) -> dict[str, Report]:
    """Host -> the report of its group, for every host of a group with two hosts or more among ``found``."""
    reports: dict[str, Report] = {}
    lost = {d.host.name: d.error.message for d in found if d.error}
    for name, ranks in _groups(found).items():
        members = [str(m["host"]) for m in ranks[0].group["members"]]
        away = {h: lost[h] for h in members if h in lost}
        if len(ranks) + len(away) < 2:
            continue
        report = _report(name, ranks, away)
        reports |= dict.fromkeys([r.sight.facts.host for r in ranks], report)
    return reports


def _groups(found: Sequence[Diagnosed]) -> dict[str, list[_Rank]]:
    """Ranks by "DEPLOYMENT on HOSTS", in rank order."""
    groups: dict[str, list[_Rank]] = {}
    for one in found:
        for seen in one.sight.seen if one.sight else ():
            group: Any = seen.release.get("group")
            if (members := members_of(group)) and one.sight:
                hosts = ", ".join(str(m["host"]) for m in members)
                rank = _Rank(int(group["rank"]), one.sight, seen)
                groups.setdefault(f"{seen.deployment} on {hosts}", []).append(rank)
    return {name: sorted(ranks, key=lambda r: r.number) for name, ranks in groups.items()}


def _report(name: str, ranks: list[_Rank], lost: Mapping[str, str]) -> Report:
    facts = [r.sight.facts for r in ranks]
    journals = [(r.sight.facts.host, _journal(r)) for r in ranks]
    rules = [o for r in ranks for o in host_rules(r.sight, r.seen)]
    rules += _between(ranks, facts)
    down = [f for r, (host, text) in zip(ranks, journals, strict=True) if (f := _down(r, host, text))]
    merged = merge_journals(journals, _ahead(facts))
    return group_report(name, merged, _head(ranks[0]), rules, lost, down)


def _down(rank: _Rank, host: str, journal: str) -> Stopped | None:
    units = rank.sight.facts.value("eyas.units", dict) or {}
    return stopped(host, rank.seen.unit, units.get(rank.seen.unit) or {}, journal)


def _head(rank: _Rank) -> Inputs:
    return gather(rank.sight, rank.seen)


def _journal(rank: _Rank) -> str:
    text = rank.seen.raw.get("journal")
    return latest_starts(text, rank.seen.unit) if isinstance(text, str) else ""


def _ahead(facts: Sequence[HostFacts]) -> dict[str, float]:
    """Seconds each clock is ahead of the operator's; what the look itself took is within a second or two."""
    times = {f.host: f.value("os.time", float) for f in facts}
    return {f.host: t - f.taken_at for f in facts if (t := times[f.host]) and abs(t - f.taken_at) > 5}


def _between(ranks: list[_Rank], facts: Sequence[HostFacts]) -> list[Outcome]:
    """What differs between the hosts, which no look at one of them sees."""
    found = compare(facts, ranks[0].group["members"], ranks[0].seen.deployment)
    status = Status.FINDINGS if found else Status.OK
    return [Outcome("between the ranks", status, tuple(found))]
