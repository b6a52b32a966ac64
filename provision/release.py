"""A release: argv, environment, unit and programs of one deployment, named by the hash of all of that.

A release folder is complete before anything points at it and is never edited afterwards.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from inventory.model import Deployment
from provision import layout
from provision.change import Change
from provision.programs import FOLDER, program
from provision.shell import Shell
from provision.unitcheck import check_units

__all__ = ["ReleaseWant", "Served", "make_release", "plan_release", "secret_digest"]

PROGRAMS = ("endpoint.py", "supervisor.py", "healthcheck.py", "proof.py")
#: Besides, for a deployment over several hosts.
GROUP_PROGRAMS = ("group.py", "ranked.py")
#: Seconds a rank waits for the others to come, at a boot or a switch; and to come with the same release.
JOIN_S, MISFIT_S = 600, 60
#: Silence of another rank after which it counts as lost.
PEER_S = 15


@dataclass(frozen=True)
class Served:
    """What a release serves: everything that must be equal for two releases to be the same one.

    argv: the full command, program path included; env: of the engine process; metrics: series by role;
    weights: role -> {label, commit, path}; model_bytes: target and draft together.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    engine_version: str
    lock_id: str
    lock_name: str
    weights: Mapping[str, Mapping[str, str]]
    model_bytes: int
    metrics: Mapping[str, str]
    api_key_env: tuple[str, ...]
    api_key_digest: str | None
    #: Of several hosts: {rank, port, members: [{rank, host, address, interface}]}.
    group: Mapping[str, Any] | None = None
    #: Rank 0 of a group that works through Ray: the head's command line.
    ray_argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReleaseWant:
    deployment: str
    id: str
    #: name in the release folder -> content
    files: Mapping[str, bytes]
    #: name under /etc/systemd/system -> content
    units: Mapping[str, bytes]
    timeout_start_s: int
    api_key_digest: str | None = None


def secret_digest(secret: str | None, deployment: str) -> str | None:
    """Changes when the key changes; scrypt, so that the release folder helps nobody to guess it."""
    if secret is None:
        return None
    return hashlib.scrypt(secret.encode(), salt=deployment.encode(), n=1 << 14, r=8, p=1, dklen=16).hex()


def make_release(d: Deployment, served: Served) -> ReleaseWant:
    """Render everything. Pure: the same input gives the same id on every machine."""
    start_s = _timeout_start_s(served.model_bytes) + (JOIN_S if served.group else 0)
    units = {name: text.encode() for name, text in _units(d, served, start_s).items()}
    content = {name: program(name) for name in PROGRAMS + (GROUP_PROGRAMS if served.group else ())}
    content["release.json"] = json.dumps(_document(d, served, start_s), indent=1, sort_keys=True).encode()
    digest = hashlib.sha256()
    for name, data in sorted({**content, **units}.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return ReleaseWant(
        d.name, digest.hexdigest()[:16], {**content, **units}, units, start_s, served.api_key_digest
    )


def _timeout_start_s(model_bytes: int) -> int:
    """Fifteen minutes for imports, compilation and graphs, and the weights at 100 MB/s from a cold disk."""
    return 900 + math.ceil(model_bytes / 100e6)


def _document(d: Deployment, s: Served, start_s: int) -> dict[str, Any]:
    address = f"[{d.host}]" if ":" in d.host else d.host
    reach = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(address, address)  # noqa: S104 - compared, not bound
    return {
        "schema": 1,
        "deployment": d.name,
        "engine": d.engine,
        "engine_version": s.engine_version,
        "lock": {"name": s.lock_name, "id": s.lock_id},
        "argv": list(s.argv),
        "env": dict(s.env),
        "weights": {role: dict(w) for role, w in s.weights.items()},
        "draft": {"method": d.draft.method, "num_speculative_tokens": d.draft.num_speculative_tokens},
        "endpoint": {"url": f"http://{reach}:{d.port}", "model": d.model_name, "port": d.port},
        "metrics": dict(s.metrics),
        "api_key_env": list(s.api_key_env),
        "api_key_digest": s.api_key_digest,
        "timeouts": {
            "start_s": start_s,
            "first_completion_s": 120,
            "probe_s": 20,
            "probe_every_s": 20,
            "hang_s": _hang_s(d),
            **({"join_s": JOIN_S, "misfit_s": MISFIT_S, "peer_s": PEER_S} if s.group else {}),
        },
        **({"group": dict(s.group)} if s.group else {}),
        "settings": json.loads(
            d.model_dump_json(exclude=_NOT_SETTINGS | (_OF_ONE_HOST if s.group else set()))
        ),
    }


#: Where things came from is no part of what serves: two operators with other paths make the same release.
_NOT_SETTINGS = {"target", "draft", "wheels_from", "weights_from", "hub_token", "api_key", "lock"}
#: Of several hosts each may have its own; the release names them in `env` and `group`.
_OF_ONE_HOST = {"env", "interface"}


def _hang_s(d: Deployment) -> int:
    """Seconds of requests waiting without a token before the engine counts as hung.

    A prefill of the longest context may take that long without one: a second per thousand tokens, and at
    least a minute; a CPU build is watched more closely because its contexts are short.
    """
    longest = d.max_model_len or 32768
    return max(15 if d.device == "cpu" else 60, longest // 1000)


@cache
def _templates() -> jinja2.Environment:
    """Compiled once, not for each host."""
    return jinja2.Environment(  # noqa: S701 - unit files, not HTML
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )


def _units(d: Deployment, s: Served, start_s: int) -> dict[str, str]:
    engine = _templates()
    unit = layout.unit_name(d.name)
    words = {
        "name": d.name,
        "unit": unit,
        "user": layout.USER,
        "model": d.model_name,
        "engine": d.engine,
        "engine_version": s.engine_version,
        "draft": d.draft.method,
        "device": d.device,
        "current": layout.current_link(d.name),
        "api_key": layout.api_key_path(d.name, s.api_key_digest) if s.api_key_digest else "",
        "timeout_start_s": start_s,
        "timeout_stop_s": 30,
        "starts": 20 if s.group else 6,
        "ray": bool(s.ray_argv),
        "joins_ray": bool(s.group and s.argv[0].endswith("/ray")),
        "ray_argv": " ".join(s.ray_argv),
        "ray_env": [f"{k}={v}" for k, v in sorted(s.env.items()) if v],
    }
    ray = (
        {f"{unit}-ray.service": engine.get_template("eyas-ray.service.j2").render(words)}
        if s.ray_argv
        else {}
    )
    return ray | {
        f"{unit}.service": engine.get_template("eyas.service.j2").render(words),
        f"{unit}-health.service": engine.get_template("eyas-health.service.j2").render(words),
        f"{unit}-health.timer": engine.get_template("eyas-health.timer.j2").render(words),
    }


def plan_release(want: ReleaseWant, complete: set[str], say: Callable[[str], None]) -> list[Change]:
    """``complete``: ids of releases whose folder is whole on the host."""
    if want.id in complete:
        return []
    text = "\n".join(f"{n}:\n{want.files[n].decode()}" for n in ("release.json", *sorted(want.units)))
    title = f"release {want.id}: argv, environment, unit; verified by systemd"
    return [Change(title, lambda shell: _write(shell, want, say), diff=text)]


def _write(shell: Shell, want: ReleaseWant, say: Callable[[str], None]) -> None:
    final, partial = layout.release_dir(want.id), layout.release_dir(f".{want.id}.partial")
    shell.run(("rm", "-rf", "--", partial), timeout=20)
    for name, data in want.files.items():
        shell.write(f"{partial}/{name}", data)
    unit = f"{partial}/{layout.unit_name(want.deployment)}.service"
    health = f"{partial}/{layout.unit_name(want.deployment)}-health.service"
    others = [f"{partial}/{name}" for name in want.units if name.endswith("-ray.service")]
    check_units(shell, layout.unit_name(want.deployment), (unit, health, *others), say)
    shell.run(("chmod", "0755", "--", partial), timeout=20)
    # A folder that lost its release.json stands in the way of a rename.
    replace = 'rm -rf -- "$3"; [ ! -e "$2" ] || mv -T -- "$2" "$3"; mv -T -- "$1" "$2"; rm -rf -- "$3"'
    broken = layout.release_dir(f".{want.id}.broken")
    shell.run(("sh", "-ec", replace, "sh", partial, final, broken), timeout=20)
