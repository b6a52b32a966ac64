"""`invoke status`: one line a host and deployment, once or again and again."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from checks.facts import HostFacts
from inventory.errors import EyasError
from inventory.model import Host
from provision import layout
from provision.gather import gather, served_now, tell_lost
from provision.observe import probe
from provision.run import Flags
from provision.shell import Shell

__all__ = ["idle_row", "row_of", "status"]

COLUMNS = ("HOST", "DEPLOYMENT", "RELEASE", "STATE", "GPU", "KV", "RUNNING", "WAITING", "ACCEPTED", "DRIFT")


def row_of(host: str, deployment: str, facts: HostFacts, told: dict[str, Any]) -> dict[str, Any]:
    """Numbers are None where nobody could read them. ``acceptance``: share of all drafted tokens so far."""
    counters = told.get("counters") or {}
    unit = (facts.value("eyas.units", dict) or {}).get(f"{layout.unit_name(deployment)}.service") or {}
    drafted, accepted = counters.get("spec_draft_tokens"), counters.get("spec_accepted_tokens")
    used = [
        g["utilization"] for g in facts.value("gpus", list) or [] if isinstance(g.get("utilization"), int)
    ]
    state = unit.get("active") or "no unit"
    return {
        "host": host,
        "deployment": deployment,
        "release": told.get("release"),
        "ready": state == "active" and not told.get("down") and not told.get("error"),
        "state": "serving" if state == "active" and not told.get("down") else told.get("down") or state,
        "restarts": unit.get("restarts"),
        "gpu_percent": round(sum(used) / len(used)) if used else None,
        "kv_usage": counters.get("kv_usage"),
        "running": counters.get("requests_running"),
        "waiting": counters.get("requests_waiting"),
        "acceptance": round(accepted / drafted, 3) if drafted and accepted is not None else None,
        "drift": sorted(told.get("differences") or {}),
    }


def status(hosts: Sequence[Host], flags: Flags, *, watch: bool = False, every_s: float = 5) -> int:
    """Exit 3 when a host gave no answer, 4 when one doesn't serve what it should, else 0."""
    if not watch:
        rows, lost, code = _collect(hosts, flags)
        if flags.as_json:
            print(json.dumps({"schema": 1, "hosts": rows, "unreachable": lost}))
        else:
            console = Console() if Console().is_terminal else Console(width=10_000)
            console.print(_table(rows))
        return code
    return _watch(lambda: _collect(hosts, flags), every_s)


def _watch(collect: Callable[[], tuple[list[dict[str, Any]], Any, int]], every_s: float) -> int:
    code = 0
    with Live(console=Console(), auto_refresh=False) as live:
        try:
            while True:
                rows, _, code = collect()
                live.update(_table(rows), refresh=True)
                time.sleep(every_s)
        except KeyboardInterrupt:
            return code


def _collect(hosts: Sequence[Host], flags: Flags) -> tuple[list[dict[str, Any]], list[dict[str, str]], int]:
    answers = gather(hosts, _look, flags)
    lost, code = tell_lost(answers)
    rows = [
        row
        for host, a in answers
        if not isinstance(a, EyasError)
        for row in ([row_of(host.name, n, a[0], told) for n, told in a[1].items()] or [idle_row(host.name)])
    ]
    return rows, lost, code or (4 if any(r["release"] and not r["ready"] for r in rows) else 0)


def _look(shell: Shell) -> tuple[HostFacts, dict[str, Any]]:
    return probe(shell), served_now(shell)


def idle_row(host: str) -> dict[str, Any]:
    return {
        "host": host,
        "deployment": None,
        "release": None,
        "ready": False,
        "state": "serves nothing",
        "drift": [],
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(*COLUMNS, box=None, pad_edge=False, header_style="bold")
    for r in rows:
        cells = [
            r["host"], r["deployment"] or "-", r["release"] or "-", r["state"][:60],
            _percent(r.get("gpu_percent")),
            _share(r.get("kv_usage")), _number(r.get("running")), _number(r.get("waiting")),
            _share(r.get("acceptance")), ", ".join(r["drift"]) or "-",
        ]  # fmt: skip
        table.add_row(*(c.replace("[", r"\[") for c in cells))
    return table


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f} %"


def _share(value: float | None) -> str:
    return "?" if value is None else f"{value * 100:.0f} %"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
