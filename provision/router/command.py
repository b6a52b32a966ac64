"""`invoke router`: install and keep it, look at it, take a backend out and put it back."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from inventory.errors import ChangeFailed, EyasError, HostUnreachable, UsageError
from inventory.load import deployment_for
from inventory.model import Host
from provision.change import Change
from provision.converge import HostReport
from provision.hostlock import host_lock
from provision.report import Progress, exit_code, show_reports
from provision.router.files import render
from provision.router.plan import Bring, plan_router
from provision.router.state import HostState, Router, look
from provision.router.want import RouterWant, kind_of, router_want
from provision.run import Flags, connector
from provision.secrets import Secrets
from provision.shell import Shell

__all__ = ["Ask", "act", "install"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ask:
    """One command line of the router. ``push``: wheels come from this machine."""

    kind: str = "haproxy"
    port: int = 8080
    listen: str = "0.0.0.0"  # noqa: S104 - an endpoint is for others, and it has a key
    deployment: str | None = None
    push: bool = False


def install(front: Host, backends: Sequence[Host], ask: Ask, flags: Flags) -> int:
    """Converge the router's host. Exit codes: see inventory/errors.py."""
    secrets = Secrets()
    members = [(h, deployment_for(h, ask.deployment)) for h in backends]
    want = router_want(members, kind_of(ask.kind), ask.port, ask.listen, secrets)
    say = Progress(secrets.mask).for_host(front.name)
    report, began = HostReport(front.name), time.monotonic()
    try:
        with connector(flags)(front) as shell:
            _converge(shell, want, ask, report, say, check=flags.check)
    except EyasError as e:
        report.fail(e)
    report.seconds = round(time.monotonic() - began, 1)
    show_reports([report], "router", as_json=flags.as_json, diff=flags.diff, mask=secrets.mask)
    return exit_code([report], detailed=flags.detailed_exitcode)


def _converge(shell: Shell, want: RouterWant, ask: Ask, report: HostReport, say: Say, *, check: bool) -> None:
    again = partial(_plan, shell, want, ask, say)
    changes = again()
    report.changes = [_line(c) for c in changes]
    if check or not changes:
        report.status = "pending" if changes else "ok"
        return
    with host_lock(shell, "router") as lock:
        changes = again()  # somebody may have worked here between our look and our lock
        report.changes = [_line(c) for c in changes]
        for change, line in zip(changes, report.changes, strict=True):
            if lock.closed:
                raise HostUnreachable("the host's lock was lost", hint="run the same command again")
            say(change.title)
            started = time.monotonic()
            change.apply(shell)
            line.update(done=True, seconds=round(time.monotonic() - started, 1))
        left = again()
    if left:
        titles = "; ".join(c.title for c in left)
        raise ChangeFailed(
            f"after all changes the host is still not as wanted: {titles}",
            hint="invoke router --check --diff shows what differs",
            host=shell.host.name,
        )
    report.status = "changed" if changes else "ok"


def _plan(shell: Shell, want: RouterWant, ask: Ask, say: Say) -> list[Change]:
    state = _look(shell, want)
    return plan_router(want, state, Bring(want, state, shell.host, push=ask.push), say)


def _look(shell: Shell, want: RouterWant) -> HostState:
    return look(shell, render(want, ()).key_path)


def _line(change: Change) -> dict[str, Any]:
    return {"title": change.title, "diff": change.diff, "done": False}


def act(action: str, name: str, front: Host, flags: Flags, *, patience_s: float) -> int:
    """status, drain NAME, restore NAME. Exit 4: no backend of a router that answers is up."""
    if action in {"drain", "restore"} and not name:
        raise UsageError(f"{action} what?", hint=f"invoke router {action} gpu03 --host {front.name}")
    with connector(flags)(front) as shell:
        router = Router(shell)
        if action == "drain":
            router.drain(name, patience_s)
        elif action == "restore":
            router.restore(name, patience_s)
        told = router.status()
    _show(front.name, told, as_json=flags.as_json)
    return 0 if any(b["state"] == "up" for b in told["backends"]) else 4


def _show(host: str, told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        words = {k: v for k, v in told.items() if k != "ok"}
        print(json.dumps({"schema": 1, "task": "router", "host": host, **words}))
        return
    table = Table("BACKEND", "ENDPOINT", "STATE", "IN FLIGHT", "REQUESTS", "WHY",
                  box=None, pad_edge=False, header_style="bold")  # fmt: skip
    for b in told["backends"]:
        numbers = ["?" if b[k] is None else str(b[k]) for k in ("in_flight", "requests")]
        cells = [b["name"], b["endpoint"], b["state"], *numbers, b["why"] or "-"]
        table.add_row(*(c.replace("[", r"\[") for c in cells))
    out = Console() if Console().is_terminal else Console(width=10_000)
    out.print(f"{told['kind']} on {host}, port {told['port']}: {told['model']}", markup=False)
    out.print(table)
