"""`invoke plan --host`: look at each host, plan its deployment for the cards it really has."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rich.console import Console

from checks.planner.deployment import gpus_of
from checks.planner.surface import Answer, Ask, Load, answer_for
from inventory.errors import EyasError
from inventory.load import deployment_for
from inventory.model import Host
from provision import observe
from provision.fleet import each_host
from provision.run import Flags, connector
from provision.shell import Shell

__all__ = ["plan_hosts"]

#: Opens one connection; a test hands in its own.
Connect = Callable[[Host], AbstractContextManager[Shell]]


def plan_hosts(
    hosts: Sequence[Host],
    deployment: str | None,
    ask: Ask,
    load: Load,
    flags: Flags,
    connect: Connect | None = None,
) -> int:
    """Print a plan for each host. Exit 3 when one could not be looked at, else 4 when one does not fit.

    With ``as_json`` one host gives its document, several give ``hosts`` and ``unreachable``.
    """
    wanted = {h.name: deployment_for(h, deployment) for h in hosts}
    opened: Connect = connect or connector(flags)

    def one(host: Host) -> Answer | EyasError:
        try:
            with opened(host) as shell:
                gpus = gpus_of(observe.probe(shell))
            return answer_for(wanted[host.name], gpus, ask, load, title=host.name)
        except EyasError as e:
            e.host = e.host or host.name
            return e

    results = each_host(hosts, one, forks=flags.forks)
    _show(list(zip(hosts, results, strict=True)), as_json=flags.as_json)
    lost = [r.exit_code for r in results if isinstance(r, EyasError)]
    return max(lost) if lost else max(r.exit_code for r in results if isinstance(r, Answer))


def _show(results: Sequence[tuple[Host, Answer | EyasError]], *, as_json: bool) -> None:
    planned = [(h, r) for h, r in results if isinstance(r, Answer)]
    lost = [r for _h, r in results if isinstance(r, EyasError)]
    if as_json:
        documents = [{**answer.to_json(), "host": host.name} for host, answer in planned]
        errors = [{"host": e.host, "error": e.message, "hint": e.hint} for e in lost]
        one = len(results) == 1 and bool(documents)
        document = documents[0] if one else {"schema": 1, "hosts": documents, "unreachable": errors}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    for _host, answer in planned:
        answer.show(Console())
    for e in lost:
        sys.stderr.write(f"{e}\n")
