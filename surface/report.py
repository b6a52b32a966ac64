"""For people who decide: the fleet as one page, and which way of serving fits."""

from typing import TYPE_CHECKING

from invoke import Context

from inventory.defaults import FORKS
from inventory.errors import UsageError
from surface.commandline import command
from surface.options import LIMIT, select

if TYPE_CHECKING:  # a task loads what it uses
    from inventory.model import Host


@command(
    help={
        **LIMIT,
        "limit": "Ansible pattern: ask these hosts now.",
        "from": "Folder of documents that --json wrote: status, doctor, drift, facts, plan, bench.",
        "out": "The page to write, one HTML file that needs no network.",
        "json": "The same data as one JSON document on stdout.",
    }
)
def report(
    c: Context,
    limit: str | None = None,
    inventory: str | None = None,
    from_: str = "",
    out: str = "",
    accept_new_host_keys: bool = False,
    forks: int = FORKS,
    json: bool = False,
) -> int:
    """The fleet as one HTML page: state, findings with fixes, GPU memory, throughput, acceptance, trends.

    From live hosts (--limit), saved documents (--from), or both. Exit 0: clean, 4: errors, 3: a host was
    not reached; the page is written all the same.
    """
    from provision import reporting, run

    if not out:
        raise UsageError("no file to write", hint="--out report.html")
    if limit is None and not from_:
        raise UsageError("nothing to report on", hint="--limit PATTERN for live hosts, --from FOLDER for saved ones")
    hosts: list[Host] = select(limit, inventory, "--limit") if limit is not None else []
    flags = run.Flags(accept_new_host_keys=accept_new_host_keys, forks=forks, as_json=json)
    return reporting.report(hosts, flags, folder=from_, out=out, scope=limit or "")
