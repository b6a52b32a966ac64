"""`invoke prune`: remove releases, environments and weights nobody serves. Current and previous ones stay."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from checks.facts import HostFacts
from inventory.errors import ChangeFailed, EyasError
from inventory.model import Host
from provision import layout
from provision.gather import gather, tell_lost
from provision.hostlock import host_lock
from provision.observe import probe
from provision.programs import program
from provision.releases import releases_on
from provision.run import Flags
from provision.shell import Shell

__all__ = ["prune", "superfluous"]


def superfluous(facts: HostFacts, releases: Iterable[dict[str, Any]]) -> list[str]:
    """Paths that neither a current nor a previous release needs, releases first.

    Where no former release is known (a host that was switched before this was noted) every complete release
    of that deployment stays. Environments without a proof and incomplete weights go: they are begun anew.
    """
    releases = list(releases)
    known = {r["deployment"] for r in releases if r["role"] == "previous"}
    kept = [r for r in releases if r["role"] or (r["complete"] and r["deployment"] not in known)]
    ids = {r["id"] for r in kept}
    gone = [layout.release_dir(r["id"]) for r in releases if r["id"] not in ids]
    envs = {layout.env_dir(r["lock"]) for r in kept if r["lock"]}
    weights = {path for r in kept for path in r["weights"]}
    found_envs = [f"{layout.ROOT}/envs/{e['id']}" for e in facts.value("eyas.envs", list) or []]
    found_weights = [
        f"{layout.STATE}/weights/{w['id']}" for w in facts.value("eyas.weights", list) or [] if "id" in w
    ]
    return [
        *gone,
        *(e for e in found_envs if e not in envs),
        *(w for w in found_weights if w not in weights),
    ]


def prune(hosts: Sequence[Host], flags: Flags) -> int:
    answers = gather(hosts, lambda s: _one(s, check=flags.check), flags)
    lost, code = tell_lost(answers)
    good = [(h, a) for h, a in answers if not isinstance(a, EyasError)]
    if flags.as_json:
        listed = [{"host": h.name, **a} for h, a in good]
        print(json.dumps({"schema": 1, "check": flags.check, "hosts": listed, "unreachable": lost}))
        return code
    out = Console(highlight=False, soft_wrap=True)
    for h, a in good:
        for path in a["would_remove"]:
            out.print(f"{h.name}: would remove {path}", markup=False)
        for item in a["removed"]:
            out.print(f"{h.name}: removed {item['removed']} ({item['bytes'] / 1e9:.2f} GB)", markup=False)
        for item in a["refused"]:
            out.print(f"{h.name}: kept {item['refused']}: {item['why']}", markup=False)
        if not any(a.values()):
            out.print(f"{h.name}: nothing to remove", markup=False)
    return code


def _one(shell: Shell, *, check: bool) -> dict[str, Any]:
    if check:
        return {"would_remove": superfluous(probe(shell), releases_on(shell)), "removed": [], "refused": []}
    with host_lock(shell, "prune"):
        paths = superfluous(probe(shell), releases_on(shell))
        told = _remove(shell, paths) if paths else []
    return {
        "would_remove": [],
        "removed": [t for t in told if "removed" in t],
        "refused": [t for t in told if "refused" in t],
    }


def _remove(shell: Shell, paths: list[str]) -> list[dict[str, Any]]:
    program_text = program("prune.py").decode()
    got = shell.run(
        ("python3", "-sEB", "-c", program_text, layout.STATE),
        timeout=3600, stdin=json.dumps(paths).encode(), check=False,
    )  # fmt: skip
    if not got.ok:
        raise ChangeFailed(f"prune ended with {got.exit}: {got.tail(3)}", host=shell.host.name)
    return [json.loads(line) for line in got.stdout.splitlines() if line.startswith("{")]
