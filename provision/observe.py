"""Look at a host: one round trip, the probe's script on standard input."""

import time
from collections.abc import Iterable

from checks.facts import HostFacts
from checks.probe import decode, pack
from inventory.errors import HostUnreachable
from provision import layout
from provision.shell import Shell

__all__ = ["probe"]

_PROBE_S = 60


def probe(
    shell: Shell, deployments: Iterable[str] = (), keys: Iterable[str] = (), files: Iterable[str] = ()
) -> HostFacts:
    """The host's facts, with the files of these deployments, other ``files``, and the modes of ``keys``.

    Raises HostUnreachable when it can't look.
    """
    names = list(deployments)
    params = {
        "folders": list(pack.DEFAULT_FOLDERS),
        "files": [*(layout.unit_path(f) for n in names for f in layout.unit_files(n)), *files],
        "own_folders": list(keys),
        "user": layout.USER,
    }
    got = shell.run(pack.ARGV, timeout=_PROBE_S, stdin=pack.payload(params), check=False)
    host = shell.host.name
    if got.exit == 127:
        told = shell.run(pack.FALLBACK_ARGV, timeout=20, stdin=pack.FALLBACK, check=False, sudo=False)
        raise decode.without_python(told.stdout.encode(), host)
    if got.exit in {124, 137}:
        raise HostUnreachable(
            f"the probe did not end within {_PROBE_S} s", hint="is a disk or a card hanging?", host=host
        )
    return decode.decode(got.stdout.encode(), host, time.time(), stderr=got.stderr.encode())
