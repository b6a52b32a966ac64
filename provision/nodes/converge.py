"""A group, from what its hosts are to what is wanted: like one host, with the ranks side by side.

Look at all, seat them, resolve each rank, and name the releases of all ranks by one id. Slow and harmless
changes are made on all hosts first; then every rank must reach every other; then the group switches as one.
"""

import contextlib
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from checks.nodes.alike import compare
from checks.nodes.fabric import Seat
from checks.outcome import Finding, Severity
from inventory.errors import ChangeFailed, CheckRefused, EyasError
from inventory.model import Host
from provision import converge, layout, service
from provision.change import Change
from provision.converge import HostReport, Options, look, plan_changes
from provision.hostlock import host_lock
from provision.nodes.measure import measure_links
from provision.nodes.ranks import GroupStopped, Rank, Say, connected, each_rank
from provision.nodes.reach import refuse_unreachable
from provision.nodes.resolve import resolve_group, seat_group, with_speed
from provision.nodes.roster import Group
from provision.nodes.switch import GroupSwitch, Over, settle_together

__all__ = ["provision_group"]


def provision_group(
    group: Group,
    connect: Callable[[Host], Any],
    options: Options,
    say_for: Callable[[str], Say],
) -> list[HostReport]:
    """Converge all hosts of one group. Never raises for what can go wrong on a host: the reports say it."""
    reports = {h.name: HostReport(h.name) for h in group.hosts}
    try:
        with connected(group, connect, reports, say_for) as ranks:
            _provision(group, ranks, options)
    except GroupStopped:
        for r in reports.values():
            with suppress(EyasError):
                options.journal.write("failed", host=r.host, error=options.sources.secrets.mask(r.error))
    except EyasError as e:
        for r in reports.values():
            r.fail(e)
    except Exception as e:  # noqa: BLE001 - a bug met in one group must not hide the other hosts
        for r in reports.values():
            r.status, r.exit_code = "crashed", 1
            r.error = f"a bug in eyas: {type(e).__name__}: {e}"
        text = options.sources.secrets.mask(traceback.format_exc())
        with suppress(EyasError):
            options.journal.write("crashed", host=group.hosts[0].name, traceback=text)
    return list(reports.values())


def _provision(group: Group, ranks: list[Rank], options: Options) -> None:
    _look(ranks, options)
    seating, foreseen = _driver(group, ranks, options)
    resolve_group(ranks, seating, options)
    if options.measure_network:
        _measure(ranks)
    each_rank(ranks, lambda r: _check(r, foreseen=foreseen[r.name], options=options))
    _alike(ranks)
    _plan(ranks, options)
    pending = any(r.changes for r in ranks)
    if options.check or not pending:
        for r in ranks:
            converge.announce(r.report, r.changes)
            r.report.status = "pending" if r.changes and options.check else r.report.status
        return
    if house := ranks[0].wanted().environment.wheelhouse:
        each_rank(ranks, lambda r: house.fetched(r.say))
    with contextlib.ExitStack() as stack:
        _take_locks(ranks, stack)
        settle_together(_over(ranks), [r.name for r in ranks], _say(ranks))
        _look(ranks, options)
        resolve_group(ranks, seating, options)
        _plan(ranks, options)
        _apply(ranks, options)
        _look(ranks, options)
        _plan(ranks, options)
    each_rank(ranks, _settled)


def _look(ranks: list[Rank], options: Options) -> None:
    def one(rank: Rank) -> None:
        rank.say("looking")
        rank.facts = look(rank.shell, rank.deployment, options)

    each_rank(ranks, one)


def _driver(group: Group, ranks: list[Rank], options: Options) -> tuple[tuple[Seat, ...], dict[str, bool]]:
    """With --install-driver: drivers before all else, one host after another (each may ask, and reboot)."""
    seating = seat_group(group, [r.seen() for r in ranks])
    foreseen = {}
    for r in ranks:
        try:
            r.facts, foreseen[r.name] = converge.driver_first(
                r.shell, r.deployment, r.seen(), options, r.report, r.say, seating
            )
        except EyasError as e:
            _stop(ranks, r, e)
    return seating, foreseen


def _stop(ranks: list[Rank], culprit: Rank, error: EyasError) -> None:
    def one(rank: Rank) -> None:
        if rank is culprit:
            raise error

    each_rank(ranks, one)


def _measure(ranks: list[Rank]) -> None:
    """The slowest link counts; what was measured is told in every host's notes."""
    ranks[0].say("measuring the network between the hosts")
    try:
        found = measure_links(ranks)
    except EyasError as e:
        culprit = next((r for r in ranks if r.name == e.host), ranks[0])
        _stop(ranks, culprit, e)
        return
    for r in ranks:
        r.links = found
        with_speed(r)


def _check(rank: Rank, *, foreseen: bool, options: Options) -> None:
    want, facts = rank.wanted(), rank.seen()
    converge.check_preconditions(facts, want, rank.report, driver_follows=foreseen)
    if options.preflight and not foreseen and not converge.known_release(want, facts):
        rank.say("does the pair fit, and do the cards hold it?")
        converge.check_preflight(facts, want, options, rank.report)


def _alike(ranks: list[Rank]) -> None:
    found: list[Finding] = compare([r.seen() for r in ranks], ranks[0].wanted().group["members"])
    by = {r.name: r for r in ranks}
    for f in found:
        by[f.host].report.findings.append(f)
    errors = [f for f in found if f.severity is Severity.ERROR]
    if errors:
        _stop(ranks, by[errors[0].host], CheckRefused(f"{errors[0].slug}: {errors[0].cause}"))


def _plan(ranks: list[Rank], options: Options) -> None:
    def one(rank: Rank) -> None:
        rank.changes = plan_changes(rank.wanted(), rank.seen(), options, rank.say)

    each_rank(ranks, one)


def _take_locks(ranks: list[Rank], stack: contextlib.ExitStack) -> None:
    """By name, so that two operators who want the same hosts don't block each other half-way."""
    for r in sorted(ranks, key=lambda r: r.name):
        try:
            r.lock = stack.enter_context(host_lock(r.shell, f"provision {r.deployment.name}"))
        except EyasError as e:
            _stop(ranks, r, e)


def _apply(ranks: list[Rank], options: Options) -> None:
    proving = any(_is_proof(c) for r in ranks for c in r.changes)
    switching = any(c.disruptive for r in ranks for c in r.changes)
    each_rank(
        ranks, lambda r: _make(r, [c for c in r.changes if not c.disruptive and not _is_proof(c)], options)
    )
    if switching:
        ranks[0].say("does every rank reach every other?")
        refuse_unreachable(ranks)
        together = _together(ranks)
        each_rank(
            ranks, lambda r: _make(r, [_switch_of(r, _former_of(r, ranks), together, options)], options)
        )
    if switching or proving:
        proof = Change("proof: streamed requests, speed, acceptance", lambda s: _prove(s, ranks))
        _make_one(ranks, ranks[0], proof, options)
    for r in ranks:
        r.report.status = "changed" if r.report.changed else "ok"


def _together(ranks: list[Rank]) -> GroupSwitch:
    return GroupSwitch([r.name for r in ranks], _over(ranks), _say(ranks))


def _over(ranks: list[Rank]) -> Over:
    by = {r.name: r for r in ranks}
    return Over(lambda name: by[name].shell, ranks[0].deployment.name)


def _say(ranks: list[Rank]) -> Callable[[str, str], None]:
    by = {r.name: r for r in ranks}
    return lambda name, text: by[name].say(text)


def _former_of(rank: Rank, ranks: list[Rank]) -> str | None:
    """What this rank goes back to: one that a cut-off switch left on the new release goes with the others."""
    name, want = rank.deployment.name, rank.wanted().release.id
    own, *others = [(r.seen().value("eyas.current", dict) or {}).get(name) for r in (rank, *ranks)]
    return next((s for s in others if s and s != want), own) if own == want else own


def _is_proof(change: Change) -> bool:
    return change.title.startswith("proof")


def _make(rank: Rank, changes: list[Change], options: Options) -> None:
    assert rank.lock is not None
    converge.apply_changes(rank.shell, changes, options, rank.report, rank.say, rank.lock)


def _make_one(ranks: list[Rank], which: Rank, change: Change, options: Options) -> None:
    each_rank(ranks, lambda r: _make(r, [change], options) if r is which else None)


def _switch_of(rank: Rank, current: str | None, together: GroupSwitch, options: Options) -> Change:
    """``current``: what is served now, and again when the switch fails."""
    release = rank.wanted().release

    def activate(on_line: service.OnLine) -> None:
        service.switch(rank.shell, release, current, options.explain, on_line)

    def back(message: str) -> None:
        if current == release.id:
            raise ChangeFailed(message, hint=f"invoke doctor --host {rank.name}", host=rank.name)
        service.put_back(rank.shell, release.deployment, current, release.timeout_start_s, message)

    planned = next((c for c in rank.changes if c.disruptive), None)
    title = planned.title if planned else f"restart eyas-{rank.deployment.name} (with its group)"
    return Change(title, lambda _: together.apply(rank.name, activate, back), disruptive=True)


def _prove(shell: Any, ranks: list[Rank]) -> None:
    """Rank 0 has the endpoint; the others keep its proof beside their part of the release."""
    want = ranks[0].wanted()
    converge.prove_release(shell, want)
    proof = shell.read(f"{layout.release_dir(want.release.id)}/proof.json")
    for r in ranks[1:]:
        r.shell.write(f"{layout.release_dir(want.release.id)}/proof.json", proof)


def _settled(rank: Rank) -> None:
    if rank.changes:
        raise ChangeFailed(
            "after all changes the host is still not as wanted: " + "; ".join(c.title for c in rank.changes),
            hint="invoke provision --check --diff shows what differs",
            host=rank.name,
        )
