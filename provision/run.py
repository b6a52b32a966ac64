"""One command line over its hosts: connect, work side by side, report. Testable without tasks.py."""

import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from checks.facts import HostFacts
from checks.report_facts import render_facts
from inventory.errors import EyasError, UsageError
from inventory.load import deployment_for
from inventory.model import Host
from provision import observe, ssh
from provision.fleet import FORKS, each_host

__all__ = ["Flags", "confirmer", "facts", "facts_document", "provision"]


@dataclass(frozen=True)
class Flags:
    check: bool = False
    diff: bool = False
    detailed_exitcode: bool = False
    wheelhouse: str | None = None
    preflight: bool = True
    install_driver: bool = False
    measure_network: bool = False
    yes: bool = False
    accept_new_host_keys: bool = False
    forks: int = FORKS
    as_json: bool = False


def connector(flags: Flags) -> Callable[[Host], ssh.SshShell]:
    ask = ssh.ask_on_terminal if sys.stdin is not None and sys.stdin.isatty() else None
    options = ssh.SshOptions(accept_new_host_keys=flags.accept_new_host_keys, ask_sudo=ask)
    return lambda host: ssh.connect(host, options)


def confirmer(yes: bool) -> Callable[[str, str], bool]:
    """Ask on the terminal, one host at a time; ``yes`` answers; without a terminal nobody agreed."""
    if yes:
        return lambda _host, _question: True
    asking = threading.Lock()

    def ask(host: str, question: str) -> bool:
        if sys.stdin is None or not sys.stdin.isatty():
            return False
        with asking:
            sys.stderr.write(f"{host}: {question}? [y/N] ")
            sys.stderr.flush()
            return sys.stdin.readline().strip().lower() in {"y", "yes"}

    return ask


def provision(hosts: Sequence[Host], deployment: str | None, flags: Flags) -> int:
    # Half of a second that `facts` and the questions to a fleet need not pay.
    from provision import converge  # noqa: PLC0415
    from provision.explain import explain  # noqa: PLC0415
    from provision.nodes.converge import provision_group  # noqa: PLC0415
    from provision.nodes.roster import groups_of  # noqa: PLC0415
    from provision.preflight import preflight  # noqa: PLC0415
    from provision.report import Progress, exit_code, show_reports  # noqa: PLC0415
    from provision.sources import Sources  # noqa: PLC0415

    wanted = {h.name: deployment_for(h, deployment) for h in hosts}
    sources = Sources(wheelhouse=Path(flags.wheelhouse).expanduser() if flags.wheelhouse else None)
    options = converge.Options(
        check=flags.check,
        sources=sources,
        preflight=preflight if flags.preflight else None,
        install_driver=flags.install_driver,
        measure_network=flags.measure_network,
        confirm=confirmer(flags.yes),
        explain=explain,
    )
    progress = Progress(sources.secrets.mask)
    connect = connector(flags)
    alone, groups = groups_of(hosts, wanted)
    reports = each_host(
        alone,
        lambda h: converge.provision_host(h, wanted[h.name], connect, options, progress.for_host(h.name)),
        forks=flags.forks,
    )
    for group in groups:
        reports += provision_group(group, connect, options, progress.for_host)
    show_reports(reports, "provision", as_json=flags.as_json, diff=flags.diff, mask=sources.secrets.mask)
    return exit_code(reports, detailed=flags.detailed_exitcode)


def facts(hosts: Sequence[Host], save: str | None, flags: Flags) -> int:
    """Exit 3 when a host could not be looked at; the others are shown all the same."""
    if save and len(hosts) != 1:
        raise UsageError(f"--save takes one host, the pattern names {len(hosts)}")
    connect = connector(flags)
    results = each_host(hosts, lambda h: _look(h, connect), forks=flags.forks)
    found = [r for r in results if isinstance(r, str)]
    lost = [r for r in results if isinstance(r, EyasError)]
    if save and found:
        Path(save).write_text(found[0] + "\n", encoding="utf-8")
    if flags.as_json:
        sys.stdout.write(facts_document(found, lost))
    else:
        for text in found:
            Console().print(render_facts(HostFacts.from_json(text)))
        for e in lost:
            sys.stderr.write(f"{e}\n")
    return max((e.exit_code for e in lost), default=0)


def facts_document(found: Sequence[str], lost: Sequence[EyasError]) -> str:
    """One JSON document of the hosts' own."""
    errors = [{"host": e.host, "error": e.message, "hint": e.hint} for e in lost]
    return f'{{"schema": 1, "hosts": [{", ".join(found)}], "unreachable": {json.dumps(errors)}}}\n'


def _look(host: Host, connect: Callable[[Host], ssh.SshShell]) -> str | EyasError:
    """As text: parsed, the facts of a host take ten times the memory."""
    try:
        with connect(host) as shell:
            return observe.probe(shell).to_json()
    except EyasError as e:
        return e
