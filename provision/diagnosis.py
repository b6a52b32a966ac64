"""`invoke doctor --host`: look at hosts side by side, name the cause on each, and hand it to `--fix`."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from checks.doctor.bundle import write_bundle
from checks.doctor.cli import show_report
from checks.doctor.diagnose import diagnose
from checks.doctor.merge import merge, titled, with_host_rules
from checks.doctor.model import Inputs, Report
from checks.doctor.report import combine, exit_code
from checks.outcome import Finding, Outcome, Status
from inventory.errors import EyasError, HostUnreachable
from inventory.load import deployment_for
from inventory.model import Deployment, Host
from provision.fleet import each_host
from provision.looking import Sight, gather, host_rules, look
from provision.nodes.diagnosis import group_reports
from provision.run import Flags, connector
from provision.shell import Shell
from provision.sources import Sources

__all__ = ["Connect", "Diagnosed", "diagnose_host", "diagnose_hosts", "reported"]

#: Opens one connection; a test hands in its own.
Connect = Callable[[Host], AbstractContextManager[Shell]]


@dataclass(frozen=True)
class Diagnosed:
    """What came of one host: its report, what it stands on (one per unit), and the exit code."""

    host: Host
    report: Report
    code: int
    inputs: tuple[Inputs, ...] = ()
    sight: Sight | None = None
    seconds: float = 0.0
    deployment: Deployment | None = None
    error: EyasError | None = field(default=None, compare=False)

    @property
    def root(self) -> Finding | None:
        """The first root cause that is an error."""
        return next((f for f in self.report.findings if f.root and f.severity.value == "error"), None)


def diagnose_hosts(
    hosts: Sequence[Host],
    deployment: str | None,
    flags: Flags,
    *,
    save: str = "",
    junit: str = "",
    fix: bool = False,
    yes: bool = False,
    connect: Connect | None = None,
) -> int:
    """Print one report over all hosts. Exit 4 when one has an error, else 3 when one could not be seen.

    ``save`` and ``junit`` keep what was found, before ``fix`` changes anything.
    """
    sources = Sources(wheelhouse=Path(flags.wheelhouse).expanduser() if flags.wheelhouse else None)
    wanted = {h.name: _named(h, deployment) for h in hosts}
    opened: Connect = connect or connector(flags)
    found = each_host(
        hosts,
        lambda h: diagnose_host(h, wanted[h.name], opened, sources, only=bool(deployment)),
        forks=flags.forks,
    )
    for one in found if save else ():
        _save(one, Path(save))
    if junit:
        from checks.doctor.junit import write_junit  # noqa: PLC0415 - xml is asked for seldom

        write_junit(Path(junit), {d.host.name: d.report for d in found})
    if fix:
        from provision.mend import mend_hosts  # noqa: PLC0415 - only --fix changes anything

        return mend_hosts(found, opened, sources, deployment=deployment, yes=yes, as_json=flags.as_json)
    show_report(reported(found), as_json=flags.as_json)
    return max(d.code for d in found)


def reported(found: Sequence[Diagnosed]) -> Report:
    """One report over several hosts; each verdict with its host's name. Hosts that serve as one are one."""
    groups = group_reports(found)
    several = list(dict.fromkeys(id(r) for r in groups.values()))
    byid = {id(r): r for r in groups.values()}
    alone = [d for d in found if d.host.name not in groups]
    return combine(
        [
            *(byid[n] for n in several),
            *(titled(d.report, d.host.name) if len(found) > 1 else d.report for d in alone),
        ]
    )


def _named(host: Host, name: str | None) -> Deployment | None:
    """What the host should serve. A name given on the command line must be right; else there may be none."""
    if name:
        return deployment_for(host, name)
    try:
        return deployment_for(host) if host.vars.get("eyas_deployment") else None
    except EyasError:
        return None


def diagnose_host(
    host: Host, deployment: Deployment | None, connect: Connect, sources: Sources, *, only: bool = False
) -> Diagnosed:
    """Look at one host and name its causes. Never raises for what can go wrong on a host."""
    began = time.monotonic()
    try:
        with connect(host) as shell:
            sight = look(shell, deployment, sources, only=only)
        inputs = tuple(gather(sight, seen) for seen in sight.seen or (None,))
        report = _report(sight, inputs)
    except EyasError as e:
        return Diagnosed(host, _lost(host, e.message, e.hint, Status.UNKNOWN), _code(e), error=e)
    except Exception as e:  # noqa: BLE001 - a bug met on one host must not hide the others
        why = f"a bug in eyas: {type(e).__name__}: {e}"
        return Diagnosed(host, _lost(host, why, "please report it", Status.CRASHED), 1)
    seconds = round(time.monotonic() - began, 2)
    return Diagnosed(host, report, exit_code(report), inputs, sight, seconds, deployment)


def _code(e: EyasError) -> int:
    """Whatever kept us from looking is "could not look", unless the command line was wrong."""
    return e.exit_code if e.exit_code == 2 else HostUnreachable.exit_code


def _report(sight: Sight, inputs: tuple[Inputs, ...]) -> Report:
    units = sight.seen or (None,)
    reports = [
        with_host_rules(diagnose(i), host_rules(sight, seen)) for i, seen in zip(inputs, units, strict=True)
    ]
    return merge(reports)


def _lost(host: Host, why: str, hint: str, status: Status) -> Report:
    outcome = Outcome("host", status, why=why, data={"host": host.name, "hint": hint})
    return Report((), (outcome,), f"could not look: {why}" + (f"; next: {hint}" if hint else ""))


def _save(one: Diagnosed, folder: Path) -> None:
    """One bundle a unit: a host with two gives two files."""
    for inputs, seen in zip(one.inputs, one.sight.seen or (None,) if one.sight else (), strict=False):
        several = one.sight and len(one.sight.seen) > 1
        name = f"{one.host.name}-{seen.deployment}" if several and seen else one.host.name
        path = write_bundle(folder, replace(inputs, host=name), one.report)
        print(f"bundle: {path}", file=sys.stderr)
