"""From a deployment and a host's facts to all that must be true there: versions, wheels, weights, release."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from checks.facts import HostFacts
from checks.nodes.fabric import Seat
from checks.preconditions import Want as HostWant
from checks.preconditions.fit import floors_of
from inventory.catalogue import EngineRelease, load_catalogue
from inventory.command import render, render_env
from inventory.errors import CheckRefused, UsageError
from inventory.locks import WheelLock, find_lock, lock_for, read_lock
from inventory.model import Deployment, Host
from inventory.ray import ray_argv, ray_environment
from inventory.resolve import resolve_version
from inventory.roles import Node, distribution
from provision import layout
from provision.beside import lacking, own_places
from provision.environment import EnvWant
from provision.release import ReleaseWant, Served, make_release, secret_digest
from provision.sources import Sources
from provision.weights import Manifest, manifest_of
from provision.wheelhouse import wheelhouse_of
from provision.wheelroom import wheel_room

__all__ = ["Sources", "Want", "want_for"]

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Want:
    """One deployment on one host, resolved. ``notes``: why this engine version, what was not known."""

    deployment: Deployment
    engine: EngineRelease
    lock: WheelLock
    environment: EnvWant
    manifests: dict[str, Manifest]
    release: ReleaseWant
    host: HostWant
    api_key: str | None
    hub_token: str | None
    notes: tuple[str, ...]
    #: Of ``notes``: branches of the deployment's file that have left what is served.
    moved: tuple[str, ...] = ()
    #: Of several hosts: this rank's place and its peers, as release.json tells it.
    group: Mapping[str, Any] = field(default_factory=dict)


def want_for(
    host: Host,
    d: Deployment,
    facts: HostFacts,
    sources: Sources,
    say: Callable[[str], None],
    *,
    seating: Sequence[Seat] = (),
) -> Want:
    """Resolve everything. Raises CheckRefused or UsageError before anything on the host is touched.

    ``seating``: of a deployment over several hosts, every host's place in it.
    """
    seat = next((s for s in seating if s.host == host.name), None)
    node = seat.node if seat else None
    if d.nodes > 1 and node is None:
        raise UsageError(
            f"deployment {d.name} spans {d.nodes} nodes, and this works on one host alone",
            hint=f"what serves as one is changed as one: invoke provision --host GROUP --deployment {d.name}",
            host=host.name,
        )
    catalogue = load_catalogue()
    python = ".".join((facts.value("python.version", str) or "").split(".")[:2]) or None
    lock = _named_lock(d)
    resolution = resolve_version(
        catalogue,
        d.engine,
        lock.target.engine_version if lock and d.engine_version == "auto" else d.engine_version,
        driver=facts.value("driver.module_version", str) or facts.value("driver.version", str),
        glibc=facts.value("os.glibc", str),
        python=python,
        compute_capability=facts.value("gpus.0.cc", str),
        device=d.device,
    )
    engine = catalogue.release(d.engine, resolution.version)
    lock = lock or _lock_for(d, resolution.version, python)
    token, key = sources.secrets.read(d.hub_token), sources.secrets.read(d.api_key)
    refs = {"target": d.target} | ({"draft": d.draft.model} if d.draft.model else {})
    ask = partial(manifest_of, endpoint=sources.endpoint, token=token)
    found = {}
    for role, ref in refs.items():
        say(f"reading what {ref.label} is made of")
        found[role] = sources.branches.find(role, ref, d, facts, ask)
    manifests = {role: f.manifest for role, f in found.items()}
    env = layout.env_dir(lock.id)
    through_ray = d.nodes > 1 and distribution(d, engine) == "ray"
    if through_ray and "ray" not in lock.packages:
        raise CheckRefused(
            f"wheel lock {lock.name} has no ray, which {d.engine} {engine.version} needs for {d.nodes} nodes",
            hint="invoke lock ... --requirement FILE, with ray==VERSION in the file; or distributed: native",
        )
    follows = through_ray and node is not None and node.rank > 0
    served = Served(
        argv=_ray_argv(d, env, node) if follows and node else _argv(d, engine, manifests, env, node),
        env=_environment(d, engine, facts, env, node, through_ray=through_ray),
        engine_version=engine.version,
        lock_id=lock.id,
        lock_name=lock.name,
        weights={
            r: {"label": m.ref.label, "commit": m.commit, "path": m.folder} for r, m in manifests.items()
        },
        model_bytes=sum(m.total_bytes for m in manifests.values()),
        metrics=dict(engine.metrics),
        api_key_env=(engine.api_key_env,) if key and engine.api_key_env else (),
        api_key_digest=secret_digest(key, d.name),
        group=group_words(d, seat, seating) if seat else None,
        ray_argv=_ray_argv(d, env, node) if through_ray and node and node.rank == 0 else (),
    )
    if key and not engine.api_key_env:
        raise CheckRefused(
            f"{d.engine} {engine.version} takes an API key only on its command line, open to every user",
            hint="keep host: 127.0.0.1 and put a router with the key in front",
        )
    environment = _env_want(host, d, engine, lock, facts, sources)
    house = environment.wheelhouse or wheelhouse_of(lock, sources.wheelhouse)
    stored = sources.shared or d.wheels_from == "push"
    room = wheel_room(lock, house, d.device, stored=stored)
    return Want(
        deployment=d,
        engine=engine,
        lock=lock,
        environment=environment,
        manifests=manifests,
        release=make_release(d, served),
        host=_host_want(d, engine, manifests, environment, facts, room),
        api_key=key,
        hub_token=token,
        notes=(
            *resolution.reasons,
            *filter(None, (engine.note, *(f.note(d) for f in found.values()))),
            *lacking(d, engine, lock),
        ),
        moved=tuple(f.note(d) for f in found.values() if f.moved),
        group=served.group or {},
    )


def group_words(d: Deployment, seat: Seat, seating: Sequence[Seat]) -> dict[str, Any]:
    """The group as a release tells it; supervisors meet beside the engine's rendezvous."""
    return {"rank": seat.node.rank, "port": d.master_port + 1, "members": [s.words() for s in seating]}


def _ray_argv(d: Deployment, env: str, node: Node) -> tuple[str, ...]:
    program, *rest = ray_argv(d, node, run_dir=f"/run/{layout.unit_name(d.name)}-ray")
    return (f"{env}/bin/{program}", *rest)


def _named_lock(d: Deployment) -> WheelLock | None:
    if d.lock is None:
        return None
    lock = read_lock(Path(d.lock).expanduser()) if d.lock.endswith(".txt") else find_lock(d.lock)
    if lock.engine != d.engine or d.engine_version not in {"auto", lock.target.engine_version}:
        raise UsageError(
            f"lock {lock.name} is for {lock.engine} {lock.target.engine_version}: not this engine"
        )
    return lock


def _lock_for(d: Deployment, engine_version: str, python: str | None) -> WheelLock:
    return lock_for(d.engine, engine_version, d.device, python=python or "3.12")


def _argv(
    d: Deployment, engine: EngineRelease, manifests: dict[str, Manifest], env: str, node: Node | None
) -> tuple[str, ...]:
    draft = manifests.get("draft")
    program, *rest = render(
        d,
        engine,
        target_path=manifests["target"].folder,
        draft_path=draft.folder if draft else None,
        node=node,
    )
    return (f"{env}/bin/{program}", *rest)


def _environment(
    d: Deployment,
    engine: EngineRelease,
    facts: HostFacts,
    env: str,
    node: Node | None,
    *,
    through_ray: bool = False,
) -> dict[str, str]:
    cuda = facts.value("cuda.home", str) if d.device == "cuda" else None
    path = [
        f"{env}/bin",
        *([f"{cuda}/bin"] if cuda else []),
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    return {
        "PATH": ":".join(path),
        **({"CUDA_HOME": cuda} if cuda else {}),
        **own_places(d.name),
        "PYTHONUNBUFFERED": "1",
        **(ray_environment(d, node) if through_ray and node else {}),
        **render_env(d, engine, node=node),
    }


def _env_want(
    host: Host,
    d: Deployment,
    engine: EngineRelease,
    lock: WheelLock,
    facts: HostFacts,
    sources: Sources,
) -> EnvWant:
    import uv  # noqa: PLC0415 - only to find its binary

    house = None
    if d.wheels_from == "push" and lock.id[:16] not in complete_envs(facts):
        house = wheelhouse_of(lock, sources.wheelhouse)
    return EnvWant(
        lock_id=lock.id,
        lock_text=lock.text,
        versions=dict(lock.packages),
        imports=("torch", d.engine),
        cuda=engine.stack.cuda if d.device == "cuda" else None,
        python=facts.value("python.path", str) or "/usr/bin/python3",
        uv_binary=Path(os.fsdecode(uv.find_uv_bin())),
        uv_version=version("uv"),
        libraries=engine.cpu.libraries if d.device == "cpu" and engine.cpu else {},
        index_url=host.vars.get("eyas_index_url"),
        wheelhouse=house,
    )


def complete_envs(facts: HostFacts) -> set[str]:
    return {e["id"] for e in facts.value("eyas.envs", list) or [] if e.get("complete") is True}


def complete_weights(facts: HostFacts, manifests: Iterable[Manifest]) -> set[str]:
    """Folders that carry the mark of a full check and still hold all their bytes: a file may be cut later."""
    found = {f"{layout.STATE}/weights/{w['id']}": w for w in facts.value("eyas.weights", list) or []}
    there = {f: w["bytes"] for f, w in found.items() if w.get("complete") is True}
    return {m.folder for m in manifests if there.get(m.folder, -1) >= m.total_bytes}


def _host_want(
    d: Deployment,
    engine: EngineRelease,
    manifests: dict[str, Manifest],
    env: EnvWant,
    facts: HostFacts,
    room: dict[str, int],
) -> HostWant:
    have = complete_weights(facts, manifests.values())
    weights = {m.ref.label: m.total_bytes for m in manifests.values() if m.folder not in have}
    wheels = {} if env.lock_id[:16] in complete_envs(facts) else room
    floors = floors_of(engine, d.device)
    return HostWant(
        device=d.device,
        floors=floors,
        tensor_parallel=d.tensor_parallel,
        pipeline_parallel=d.pipeline_parallel,
        nodes=d.nodes,
        gpu_memory_utilization=d.gpu_memory_utilization or _default_utilization(engine),
        address=d.host,
        port=d.port,
        unit=f"{layout.unit_name(d.name)}.service",
        disk={layout.ROOT: wheels, layout.STATE: weights},
        weights_bytes=sum(m.total_bytes for m in manifests.values()),
        tools=("rsync",) if d.wheels_from == "push" or d.weights_from == "push" else (),
    )


def _default_utilization(engine: EngineRelease) -> float:
    value = engine.defaults.get("gpu_memory_utilization")
    return float(value) if isinstance(value, int | float) else 0.9


def release_number(release_id: str) -> bool:
    """Whether a name is a release id (and not a partial folder)."""
    return bool(re.fullmatch(r"[0-9a-f]{16}", release_id))
