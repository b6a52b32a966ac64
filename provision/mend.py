"""`invoke doctor --fix`: from the root cause to a plan, asked for, applied by provision, looked at again.

"Fixed" is said only when the cause is gone and the service is ready; anything else is undone.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from checks.doctor.report import print_report
from checks.outcome import Finding, Severity
from inventory.errors import ChangeFailed, EyasError, UsageError
from inventory.load import deployment_for, find_deployment
from inventory.model import Deployment
from inventory.yamlfile import parse_yaml, read_text
from provision import converge
from provision.diagnosis import Connect, Diagnosed, diagnose_host
from provision.edit import set_value
from provision.explain import explain
from provision.localfile import replace_text
from provision.remedy import Remedy, host_remedy, remedy_for
from provision.report import Progress
from provision.sources import Sources

__all__ = ["mend_hosts"]

_HINT = "copy the deployment to inventory/deployments first"


@dataclass
class Mended:
    """What came of one host. ``status``: clean, unseen, by-hand, declined, fixed, undone."""

    host: str
    status: str
    code: int = 0
    cause: str = ""
    plan: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    error: str = ""


Ask = Callable[[str], bool]


def mend_hosts(
    found: Sequence[Diagnosed],
    connect: Connect,
    sources: Sources,
    *,
    deployment: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """One host after the other. Exit 0 when all are clean or fixed, else the worst host's code."""
    out = Console(stderr=as_json, highlight=False, soft_wrap=True)
    ask = (lambda _: True) if yes else _asker()
    results = []
    for one in found:
        print_report(one.report, out)
        mended = _mend(one, connect, sources, deployment, ask, out)
        out.print(f"[bold]{escape(one.host.name)}[/] {mended.status}: {escape(mended.error or mended.cause)}")
        results.append(mended)
    if as_json:
        hosts: list[dict[str, Any]] = [vars(m) for m in results]
        sys.stdout.write(json.dumps({"schema": 1, "task": "doctor --fix", "hosts": hosts}) + "\n")
    return max(m.code for m in results)


def _asker() -> Ask:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("--fix asks before it changes anything, and there is no terminal", hint="add --yes")
    return lambda question: input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def _mend(
    one: Diagnosed, connect: Connect, sources: Sources, named: str | None, ask: Ask, out: Console
) -> Mended:
    if one.sight is None:
        return Mended(one.host.name, "unseen", one.code, error=one.report.verdict)
    root = one.root or _foreseen(one)
    if root is None:
        return Mended(one.host.name, "clean", one.code, cause="no error was found")
    result = Mended(one.host.name, "by-hand", 4, cause=f"{root.slug}: {root.title}")
    result.commands = [x.command for x in root.fix if x.command]
    remedy = _remedy(one, root)
    if remedy is None:
        unnamed = f"{root.slug}: name the deployment to mend it from here (--deployment NAME)"
        by_hand = f"{root.slug} is not mended from here; its commands are above"
        if one.deployment and one.deployment.nodes > 1:
            by_hand += "; what serves as one is changed as one: invoke provision --host GROUP"
        result.error = by_hand if one.deployment else unnamed
        return result
    result.plan = _plan(one, remedy)
    for number, step in enumerate(result.plan, 1):
        out.print(f"  plan {number} {escape(step)}")
    if not ask(f"{one.host.name}: apply this plan?"):
        result.status, result.error = "declined", "nothing was changed"
        return result
    return _apply(one, root, remedy, connect, sources, named, result)


def _foreseen(one: Diagnosed) -> Finding | None:
    """Nothing is wrong yet: the first warning that the host itself can be spared."""
    assert one.sight is not None
    facts = one.sight.facts
    return next((f for f in one.report.findings if f.root and host_remedy(f, facts)), None)


def _remedy(one: Diagnosed, root: Finding) -> Remedy | None:
    assert one.sight is not None
    if one.deployment is None or one.deployment.nodes > 1:
        return host_remedy(root, one.sight.facts)
    unit = f"eyas-{one.deployment.name}.service"
    seen = next((s for s in one.sight.seen if s.unit == unit), None)
    return remedy_for(root, one.deployment, seen, one.sight.facts)


def _plan(one: Diagnosed, remedy: Remedy) -> list[str]:
    if remedy.host_only or one.deployment is None:
        return [remedy.title]
    return [remedy.title, f"provision {one.deployment.name}: what that changes, a restart, the proof"]


def _apply(
    one: Diagnosed,
    root: Finding,
    remedy: Remedy,
    connect: Connect,
    sources: Sources,
    named: str | None,
    result: Mended,
) -> Mended:
    """Do, provision, look again; whatever stops on the way leads through the undoing."""
    edit = _Edit(one, named, remedy) if remedy.loc else None
    try:
        wanted = edit.write() if edit else one.deployment
        with connect(one.host) as shell:
            remedy.apply(shell)
        served = None if remedy.host_only else wanted
        why = _provisioned(one, served, connect, sources) if served else ""
        why = why or _still(one, root, served, connect, sources)
    except EyasError as e:
        why, result.code = str(e), e.exit_code
    if not why:
        result.status, result.code = "fixed", 0
        return result
    left = _undone(one, remedy, edit, connect)
    result.status, result.code = "undone", max(result.code, 5)
    result.error = f"not fixed: {why}; {left}"
    return result


def _provisioned(one: Diagnosed, wanted: Deployment, connect: Connect, sources: Sources) -> str:
    """Run provision; its error, or "" when it went through."""
    say = Progress(sources.secrets.mask).for_host(one.host.name)
    options = converge.Options(sources=sources, explain=explain)
    report = converge.provision_host(one.host, wanted, connect, options, say)
    return report.error if report.exit_code else ""


def _still(
    one: Diagnosed, root: Finding, wanted: Deployment | None, connect: Connect, sources: Sources
) -> str:
    """Look again: "" when the cause is gone and the service, if it was about one, runs."""
    again = diagnose_host(one.host, wanted, connect, sources)
    if again.sight is None:
        return f"nobody could look again: {again.report.verdict}"
    if any(
        f.slug == root.slug and f.severity in {root.severity, Severity.ERROR} for f in again.report.findings
    ):
        return f"{root.slug} is still there"
    if wanted is None:
        return ""
    units = again.sight.facts.value("eyas.units", dict) or {}
    state = (units.get(f"eyas-{wanted.name}.service") or {}).get("active")
    return "" if state == "active" else f"the service is {state}: {again.report.verdict}"


def _undone(one: Diagnosed, remedy: Remedy, edit: "_Edit | None", connect: Connect) -> str:
    """Put back what was changed by us; provision has put its own back already."""
    try:
        if edit:
            edit.restore()
        with connect(one.host) as shell:
            remedy.revert(shell)
    except EyasError as e:
        return f"and it could not be undone: {e.message}"
    return "what was changed is as before"


class _Edit:
    """One value of the deployment's file, and the way back."""

    def __init__(self, one: Diagnosed, named: str | None, remedy: Remedy) -> None:
        self._host, self._remedy = one.host, remedy
        self._named = named or str(one.host.vars.get("eyas_deployment") or "")
        self.path: Path = find_deployment(self._named)
        self._before = read_text(self.path)
        self._text = ""

    def write(self) -> Deployment:
        doc = parse_yaml(self._before, self.path)
        self._text = set_value(doc, self._before, self._remedy.loc, self._remedy.value)
        replace_text(self.path, self._text, hint=_HINT)
        wanted = deployment_for(self._host, self._named)
        inner: Any = wanted
        for key in self._remedy.loc:
            inner = getattr(inner, str(key))
        if inner != self._remedy.value:
            raise ChangeFailed(
                f"{'.'.join(map(str, self._remedy.loc))} is overridden for this host",
                hint="change eyas_overrides in the inventory",
                host=self._host.name,
            )
        return wanted

    def restore(self) -> None:
        """Only when it is still what we wrote: an edit of somebody else stays."""
        if self._text and read_text(self.path) == self._text:
            replace_text(self.path, self._before, hint=_HINT)
