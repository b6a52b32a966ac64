"""`bench --against baseline`: the short bench again, compared with the one its release was proven with."""

from collections.abc import Callable
from typing import Any

from checks.bench.baseline import against
from checks.bench.model import AgainstBaseline
from inventory.errors import CheckRefused
from inventory.model import Deployment
from provision.converge import Options, look
from provision.hostlock import host_lock
from provision.proof import read_proof
from provision.service import prove
from provision.shell import Shell

__all__ = ["against_baseline"]

#: Short benches until it can be told; each is a few seconds.
_TRIES = 5
_ROUNDS = 4


def against_baseline(
    shell: Shell, d: Deployment, options: Options, say: Callable[[str], None]
) -> AgainstBaseline:
    """Pass, fail or can't tell. Raises CheckRefused where nothing is served."""
    current = (look(shell, d, options).value("eyas.current", dict) or {}).get(d.name)
    before = read_proof(shell, current)
    if current is None:
        raise CheckRefused(f"{d.name} does not serve here", hint=f"invoke provision --host {shell.host.name}")
    samples: list[Any] = []
    found = against({}, before)
    with host_lock(shell, f"bench {d.name}"):
        for number in range(1, _TRIES + 1):
            now = prove(shell, d.name, rounds=_ROUNDS)
            samples += now.get("samples") or []
            found = against({**now, "samples": samples}, before)
            say(f"short bench {number}: {found.text}")
            if found.answer != "can't tell" or not found.rows:
                break
    return found
