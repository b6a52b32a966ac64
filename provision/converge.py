"""One host, from what it is to what is wanted: look, decide, change, look again, prove.

The plan is a list of changes made from facts and wish alone; an empty list means "already so". Slow and
harmless changes come first, the switch last, so that what serves is untouched until everything is there.
"""

import json
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any

from checks.facts import HostFacts, Missing
from checks.nodes.fabric import Seat
from checks.outcome import Evidence, Finding, Severity
from checks.preconditions import run_preconditions, verdict
from inventory.errors import ChangeFailed, CheckRefused, EyasError, HostUnreachable, LockHeld, RolledBack
from inventory.model import Deployment, Host
from provision import layout
from provision.change import Change
from provision.driver import DriverJob, about_driver, driver_floors
from provision.environment import plan_environment
from provision.explain import Explained, named
from provision.hostlock import host_lock
from provision.journal import Journal
from provision.observe import probe
from provision.programs import program
from provision.proof import baseline_key, record_proof
from provision.release import plan_release, secret_digest
from provision.service import ServiceState, plan_switch, prove
from provision.shell import Session, Shell
from provision.sources import Sources
from provision.want import Want, complete_envs, complete_weights, want_for
from provision.weights import plan_weights

__all__ = ["HostReport", "Options", "plan_changes", "provision_host"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    check: bool = False
    sources: Sources = field(default_factory=Sources)
    journal: Journal = field(default_factory=Journal)
    #: Fit of models and cards, asked before a new release is made: findings, and what nobody could look at.
    preflight: Callable[[Want, HostFacts, Sources], tuple[list[Finding], list[str]]] | None = None
    install_driver: bool = False
    #: Of several hosts: measure the links between them with iperf3 first.
    measure_network: bool = False
    #: ``(host, question)``: whether the operator agrees to the reboot that a new driver needs.
    confirm: Callable[[str, str], bool] = lambda _host, _question: False
    #: What the doctor says of a failed start's journal.
    explain: Callable[[str], Explained] = lambda _: ("", ())


@dataclass
class HostReport:
    """What came of one host. ``status``: ok, changed, pending, refused, unreachable, failed, rolled-back."""

    host: str
    status: str = "ok"
    exit_code: int = 0
    changes: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    release: str = ""
    proof: dict[str, Any] | None = None
    error: str = ""
    hint: str = ""
    seconds: float = 0.0

    @property
    def changed(self) -> int:
        return sum(1 for c in self.changes if c.get("done"))

    def fail(self, e: EyasError) -> None:
        self.exit_code, self.error, self.hint = e.exit_code, e.message, e.hint
        self.findings += e.findings or named(e.cause, Evidence("provision", e.message), host=self.host)
        kinds = {
            HostUnreachable: "unreachable",
            CheckRefused: "refused",
            RolledBack: "rolled-back",
            LockHeld: "locked",
        }
        self.status = next((name for kind, name in kinds.items() if isinstance(e, kind)), "failed")


def provision_host(
    host: Host, deployment: Deployment, connect: Callable[[Host], Any], options: Options, say: Say
) -> HostReport:
    """Converge one host. Never raises for what can go wrong on a host: the report says it."""
    report, start = HostReport(host.name), time.monotonic()
    try:
        with connect(host) as shell:
            _provision(shell, deployment, options, report, say)
    except EyasError as e:
        report.fail(e)
        with suppress(EyasError):
            options.journal.write("failed", host=host.name, error=options.sources.secrets.mask(str(e)))
    except Exception as e:  # noqa: BLE001 - a bug met on one host must not hide the others
        report.status, report.exit_code = "crashed", 1
        report.error = f"a bug in eyas: {type(e).__name__}: {e}"
        report.hint = f"please report it with the last entry of {options.journal.path}"
        text = options.sources.secrets.mask(traceback.format_exc())
        with suppress(EyasError):
            options.journal.write("crashed", host=host.name, traceback=text)
    report.seconds = round(time.monotonic() - start, 1)
    return report


def _provision(shell: Shell, d: Deployment, options: Options, report: HostReport, say: Say) -> None:
    say("looking")
    facts, foreseen = driver_first(shell, d, look(shell, d, options), options, report, say)
    want = want_for(shell.host, d, facts, options.sources, say)
    report.release, report.notes = want.release.id, list(want.notes)
    check_preconditions(facts, want, report, driver_follows=foreseen)
    changes = plan_changes(want, facts, options, say)
    if changes and options.preflight and not foreseen and not known_release(want, facts):
        say("does the pair fit, and do the cards hold it?")
        check_preflight(facts, want, options, report)
    if options.check or not changes:
        announce(report, changes)
        report.status = "pending" if report.changes and options.check else report.status
        return
    if want.environment.wheelhouse:
        want.environment.wheelhouse.fetched(say)
    with host_lock(shell, f"provision {d.name}") as lock:
        # Somebody may have worked here between our look and our lock.
        changes = plan_changes(want, look(shell, d, options), options, say)
        apply_changes(shell, changes, options, report, say, lock)
        say("looking again")
        again = plan_changes(want, look(shell, d, options), options, say)
    report.status = "changed" if report.changes else "ok"
    if again:
        raise ChangeFailed(
            "after all changes the host is still not as wanted: " + "; ".join(c.title for c in again),
            hint="invoke provision --check --diff shows what differs",
            host=shell.host.name,
        )


def driver_first(
    shell: Shell,
    d: Deployment,
    facts: HostFacts,
    options: Options,
    report: HostReport,
    say: Say,
    seating: Sequence[Seat] = (),
) -> tuple[HostFacts, bool]:
    """With --install-driver: the driver before all else, since engine and wheels follow from it.

    Returns the facts to go on with, and whether they only foresee a driver (``check``). Everything else that
    would refuse this host refuses it before its driver is touched.
    """
    if not options.install_driver or d.device == "cpu":
        return facts, False
    again = partial(look, shell, d, options)
    job = DriverJob(shell, facts, driver_floors(d, facts), options.confirm, say, again)
    changes = job.plan()
    if not changes:
        return facts, False
    foreseen = job.foreseen()
    if options.check:
        announce(report, changes)
        return foreseen, True
    want = want_for(shell.host, d, foreseen, options.sources, say, seating=seating)
    check_preconditions(foreseen, want, report, driver_follows=True)
    if options.preflight:
        check_preflight(foreseen, want, options, report)
    with host_lock(shell, "install the driver") as lock:
        job.facts = job.look()
        apply_changes(shell, job.plan(fetch=True), options, report, say, lock)
    report.status = "changed" if report.changed else report.status
    return job.prove(), False


def check_preconditions(facts: HostFacts, want: Want, report: HostReport, *, driver_follows: bool) -> None:
    """``driver_follows``: what the present driver is, or hides, is no reason to refuse."""
    host = replace(want.host, driver_will_be_installed=driver_follows)
    outcomes = run_preconditions(facts, host)
    if driver_follows:
        outcomes = [o for o in outcomes if not about_driver(o.check)]
    result = verdict(outcomes)
    report.findings = [*result.errors, *result.warnings]
    report.unseen = [f"{o.check}: {o.why}" for o in result.unseen]
    _refuse(result.errors, facts.host)


def known_release(want: Want, facts: HostFacts) -> bool:
    """Whether this very release has been proven on this host before."""
    releases = facts.value("eyas.releases", list) or []
    return any(r.get("id") == want.release.id and r.get("proven") for r in releases)


def check_preflight(facts: HostFacts, want: Want, options: Options, report: HostReport) -> None:
    assert options.preflight is not None
    findings, unseen = options.preflight(want, facts, options.sources)
    report.findings += findings
    report.unseen += unseen
    _refuse([f for f in findings if f.severity is Severity.ERROR], facts.host)


def _refuse(errors: Sequence[Finding], host: str) -> None:
    if errors:
        first = errors[0]
        way_out = next((f.command or f.change for f in first.fix), "")
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise CheckRefused(f"{first.slug}: {first.cause}{more}", hint=way_out, host=host)


def look(shell: Shell, d: Deployment, options: Options) -> HostFacts:
    digest = secret_digest(options.sources.secrets.read(d.api_key), d.name)
    keys = [layout.api_key_path(d.name, digest)] if digest else []
    facts = probe(shell, [d.name], keys)
    late = isinstance(facts.get("eyas.units"), Missing)  # a busy host's systemctl may have answered too late
    return probe(shell, [d.name], keys) if late else facts


def announce(report: HostReport, changes: list[Change]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [{"title": c.title, "diff": c.diff, "done": False} for c in changes]
    report.changes += lines
    return lines


def apply_changes(
    shell: Shell, changes: list[Change], options: Options, report: HostReport, say: Say, lock: Session
) -> None:
    """In order; each is announced in the journal before it is made, and none is made without the lock."""
    for change, line in zip(changes, announce(report, changes), strict=True):
        if lock.closed:
            raise HostUnreachable(
                "the host's lock was lost: the link was down for too long",
                hint="run the same command again; it goes on where it stopped",
                host=shell.host.name,
            )
        options.journal.write("change", host=shell.host.name, release=report.release, title=change.title)
        say(change.title)
        began = time.monotonic()
        change.apply(shell)
        line.update(done=True, seconds=round(time.monotonic() - began, 1))
        if "proof" in line["title"]:
            report.proof = json.loads(shell.read(f"{layout.release_dir(report.release)}/proof.json") or b"{}")


def plan_changes(want: Want, facts: HostFacts, options: Options, say: Say) -> list[Change]:
    """Everything that is not yet as wanted, in the order it is made."""
    d = want.deployment
    python = f"{layout.env_dir(want.lock.id)}/bin/python"
    releases = {r["id"]: r for r in facts.value("eyas.releases", list) or [] if r.get("complete") is True}
    proven = bool(releases.get(want.release.id, {}).get("proven"))
    switch = plan_switch(want.release, service_state(want, facts), options.explain)
    proof = (
        []
        if proven and not switch
        else [Change("proof: streamed requests, speed, acceptance", lambda s: prove_release(s, want))]
    )
    return [
        *_plan_base(facts),
        *plan_environment(
            want.environment, complete_envs(facts), set(facts.value("eyas.uv", list) or []), say
        ),
        *plan_weights(
            want.manifests.values(),
            complete_weights(facts, want.manifests.values()),
            python=python,
            endpoint=options.sources.endpoint,
            token=want.hub_token,
            push=d.weights_from == "push",
            say=say,
        ),
        *_plan_credential(want, facts),
        *plan_release(want.release, set(releases), say),
        *switch,
        *proof,
    ]


def _plan_base(facts: HostFacts) -> list[Change]:
    folders = facts.value("eyas.folders", dict) or {}
    wanted = (layout.ROOT, f"{layout.ROOT}/envs", f"{layout.STATE}/releases", layout.ETC)
    user: dict[str, Any] | None = facts.value("eyas.user", dict)
    if user and all(folders.get(f) for f in wanted):
        return []
    return [Change("system user and folders", _make_base)]


def _make_base(shell: Shell) -> None:
    shell.run(("sh", "-s"), timeout=60, stdin=program("base.sh"))


def _plan_credential(want: Want, facts: HostFacts) -> list[Change]:
    """One file a key, named by the key's digest: a former release still finds its own."""
    digest = want.release.api_key_digest
    if want.api_key is None or digest is None:
        return []
    path = layout.api_key_path(want.deployment.name, digest)
    there = (facts.value("eyas.folders", dict) or {}).get(path)
    if there and there.get("mode") == "0600":
        return []
    key = want.api_key.encode()
    return [Change("API key as a systemd credential (0600)", lambda s: s.write(path, key, mode=0o600))]


def service_state(want: Want, facts: HostFacts) -> ServiceState:
    name = want.deployment.name
    files, units, current = (_seen(facts, f"eyas.{part}") for part in ("files", "units", "current"))
    equal = all(
        (files.get(layout.unit_path(n)) or {}).get("sha256") == sha256(data).hexdigest()
        for n, data in want.release.units.items()
    )
    service = units.get(f"{layout.unit_name(name)}.service") or {}
    timer = units.get(f"{layout.unit_name(name)}-health.timer") or {}
    return ServiceState(
        current=current.get(name),
        units_equal=equal,
        drop_ins=any(f"/{layout.unit_name(name)}.service.d/" in p for p in service.get("drop_ins") or ()),
        active=service.get("active") == "active",
        enabled=service.get("enabled") == "enabled",
        timer_active=timer.get("active") == "active",
    )


def _seen(facts: HostFacts, path: str) -> dict[str, Any]:
    """No restart is decided on what nobody could read: a busy host's systemctl may answer too late."""
    fact = facts.get(path)
    if isinstance(fact, Missing):
        raise HostUnreachable(
            f"nobody could look at {path}: {fact.reason}",
            hint="run the same command again when the host is less busy",
            host=facts.host,
        )
    return dict(fact.value or {})


def prove_release(shell: Shell, want: Want) -> None:
    """Measure, compare with the recorded run without speculation, keep the result with the release."""
    speculates = want.deployment.draft.method != "none"
    result = prove(shell, want.deployment.name)
    record_proof(shell, want.release.id, baseline_key(want), result, speculates=speculates)
