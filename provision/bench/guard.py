"""The host's own way back: a unit that serves the former release again when the operator is gone.

It waits for the host's lock (systemd/put_back.py), is enabled (a reboot changes nothing), and is removed when
the operator has put the release back. Any later switch by `provision` or `rollout` makes it void.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator

import jinja2

from inventory.errors import HostUnreachable
from provision import layout
from provision.bench.programs import bring
from provision.programs import FOLDER
from provision.service import activate
from provision.shell import Shell

__all__ = ["serving_others"]


def _arm(shell: Shell, deployment: str, release: str) -> None:
    """Marker first: without it the unit would end at once; without the unit the marker does nothing."""
    told = {
        "deployment": deployment,
        "release": layout.release_dir(release),
        "link": layout.current_link(deployment),
        "unit": layout.unit_name(deployment),
        "since": round(time.time(), 3),
    }
    unit = layout.putback_unit(deployment)
    text = _unit(deployment, bring(shell))
    shell.write(layout.bench_marker(deployment), json.dumps(told).encode())
    shell.write(layout.unit_path(unit), text.encode())
    shell.run(("systemctl", "daemon-reload"), timeout=60)
    shell.run(("systemctl", "enable", "--quiet", "--now", unit), timeout=60)


def _unit(deployment: str, programs: str) -> str:
    loader = jinja2.FileSystemLoader(FOLDER)
    made = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)  # noqa: S701 - a unit, not HTML
    return made.get_template("putback.service.j2").render(
        name=deployment,
        marker=layout.bench_marker(deployment),
        program=f"{programs}/put_back.py",
        lock=layout.LOCK,
        work=layout.WORK,
        audit=layout.AUDIT,
    )


_DISARM = """
rm -f -- "$1"
systemctl disable --quiet --now "$2" 2>/dev/null || true
rm -f -- "/etc/systemd/system/$2"
systemctl daemon-reload
"""


def _disarm(shell: Shell, deployment: str) -> None:
    unit = layout.putback_unit(deployment)
    shell.run(("sh", "-c", _DISARM, "sh", layout.bench_marker(deployment), unit), timeout=90)


_SERVES = """
[ "$(readlink -- "$1")" = "$2" ] && systemctl is-active --quiet "$3.service"
"""


def _put_back(shell: Shell, deployment: str, release: str, timeout_start_s: float) -> None:
    where = layout.current_link(deployment), layout.release_dir(release), layout.unit_name(deployment)
    try:
        if not shell.run(("sh", "-c", _SERVES, "sh", *where), timeout=30, check=False).ok:
            activate(shell, deployment, release, timeout_start_s)
        _disarm(shell, deployment)
    except HostUnreachable as e:
        raise HostUnreachable(
            f"{e.message}; the host itself serves release {release} again when it notices, within a minute",
            hint=f"invoke status --limit {shell.host.name}",
            host=shell.host.name,
        ) from e


@contextlib.contextmanager
def serving_others(
    shell: Shell, deployment: str, release: str, timeout_start_s: float, say: Callable[[str], None]
) -> Iterator[None]:
    """Within the block other releases may be served; after it ``release`` is, whatever happened.

    Raises what went wrong in the block, or what keeps the release from coming back; the host goes on trying.
    """
    _arm(shell, deployment, release)
    try:
        yield
    finally:
        say(f"putting back what served before: release {release}")
        _put_back(shell, deployment, release, timeout_start_s)
