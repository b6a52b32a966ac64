"""What must hold before a host is touched: pure rules over one probe, for `provision` and the doctor."""

from dataclasses import dataclass

from checks.facts import HostFacts
from checks.outcome import Finding, Outcome, Severity, Status
from checks.preconditions import disk, driver, driver_fit, gpus, parallel, service, stack, system
from checks.preconditions.want import Floors, Want
from checks.rule import Rule, observe

__all__ = ["RULES", "Floors", "Verdict", "Want", "run_preconditions", "verdict"]

GROUPS = (system, driver, driver_fit, stack, gpus, parallel, disk, service)
RULES: tuple[Rule[Want], ...] = tuple(rule for group in GROUPS for rule in group.RULES)


def run_preconditions(facts: HostFacts, want: Want) -> list[Outcome]:
    """One outcome per rule, in the order of the groups. Rules about cards are SKIPPED for device "cpu"."""
    return [_outcome(rule, facts, want) for rule in RULES]


def _outcome(rule: Rule[Want], facts: HostFacts, want: Want) -> Outcome:
    if rule.needs_cards and want.device == "cpu":
        return Outcome(rule.slug, Status.SKIPPED, why="the deployment runs on the CPU")
    return observe(rule, facts, want)


@dataclass(frozen=True)
class Verdict:
    """Outcomes sorted by what they mean for going on. ``unseen``: rules that could not look, or crashed."""

    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    unseen: tuple[Outcome, ...]

    @property
    def refused(self) -> bool:
        return bool(self.errors)


def verdict(outcomes: list[Outcome]) -> Verdict:
    found = [f for o in outcomes for f in o.findings]
    return Verdict(
        errors=tuple(f for f in found if f.severity is Severity.ERROR),
        warnings=tuple(f for f in found if f.severity is not Severity.ERROR),
        unseen=tuple(o for o in outcomes if o.status in {Status.UNKNOWN, Status.CRASHED}),
    )
