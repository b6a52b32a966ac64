"""What the command tasks print: a line to paste, a table, or one JSON document."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from packaging.version import Version
from rich.console import Console
from rich.table import Table

from inventory.catalogue import EngineRelease, load_catalogue
from inventory.command import render, render_env
from inventory.model import Deployment
from inventory.resolve import locked_versions
from inventory.roles import Node
from inventory.translate import Translation

__all__ = ["show_command", "show_engines", "show_translation"]


def show_command(deployment: Deployment, version: str | None, *, node: Node | None, as_json: bool) -> None:
    """Print the argv of a deployment; a person gets one line to paste, notes go to stderr."""
    catalogue = load_catalogue()
    release = catalogue.release(deployment.engine, _version(deployment, version))
    argv = render(deployment, release, node=node)
    env = deployment.env | {k: v for k, v in render_env(deployment, release).items() if k in deployment.env}
    if as_json:
        _document(
            deployment=deployment.name,
            engine=release.engine,
            engine_version=release.version,
            argv=list(argv),
            env=render_env(deployment, release),
            notes=[release.note] if release.note else [],
        )
        return
    print(" ".join([*(f"{k}={shlex.quote(v)}" for k, v in env.items()), shlex.join(argv)]))
    if release.note:
        print(f"note: {release.note}", file=sys.stderr)


def _version(deployment: Deployment, wanted: str | None) -> str:
    version = wanted or deployment.engine_version
    if version != "auto":
        return version
    catalogued = load_catalogue().releases(deployment.engine)
    locked = [v for v in locked_versions(deployment.engine, deployment.device) if v in catalogued]
    return max(locked, key=Version) if locked else catalogued[-1]


def show_translation(found: Translation, written: Path | None, *, as_json: bool) -> None:
    """Print a translation: the command to paste, then a note per change."""
    if as_json:
        print(json.dumps(found.as_json() | ({"written": str(written)} if written else {})))
        return
    env = [f"{k}={shlex.quote(v)}" for k, v in found.deployment.env.items()]
    print(" ".join([*env, shlex.join(found.argv)]))
    notes = Table("WHAT", "FLAG", "NOTE", box=None, pad_edge=False, header_style="bold")
    for note in found.notes:
        notes.add_row(note.kind, note.flag, note.text.replace("[", r"\["))
    console = Console(stderr=True)
    console.print(notes)
    if written:
        console.print(
            f"wrote {written}; next: invoke check-pair, invoke plan --deployment {found.deployment.name}"
        )


def show_engines(engine: str | None, version: str | None, *, as_json: bool) -> None:
    """Print the catalogue's versions, or everything known of one."""
    catalogue = load_catalogue()
    names = [catalogue.engine(engine).engine] if engine else list(catalogue.engines)
    if version:
        having = [n for n in names if version in catalogue.releases(n)] or names[:1]
        releases = [catalogue.release(n, version) for n in having]
    else:
        releases = [catalogue.release(n, s.examined) for n in names for s in catalogue.engine(n).stack]
    facts = [_facts(r, full=bool(version)) for r in releases]
    if as_json:
        _document(engines=facts)
    elif version:
        for one in facts:
            _print_release(one)
    else:
        _print_releases(facts)


def _facts(release: EngineRelease, *, full: bool) -> dict[str, Any]:
    stack = release.stack
    facts: dict[str, Any] = {
        "engine": release.engine,
        "version": release.version,
        "torch": stack.torch,
        "cuda": stack.cuda,
        "driver_floor": stack.driver_floor,
        "python": str(stack.python),
        "glibc": stack.glibc,
        "compute_capability": list(stack.compute_capability),
        "methods": sorted(release.methods),
        "cpu_build": release.cpu.package if release.cpu else None,
        "note": release.note,
    }
    if full:
        facts |= {
            "flags": {role: flag.where for role, flag in release.flags.items()},
            "defaults": dict(release.defaults),
            "metrics": dict(release.metrics),
            "pieces": [{"name": p.name, "how": p.how, "why": p.why} for p in release.pieces],
        }
    return facts


def _print_releases(facts: list[dict[str, Any]]) -> None:
    table = Table(
        "ENGINE", "VERSION", "TORCH", "CUDA", "DRIVER", "PYTHON", "GLIBC", "CARDS", "DRAFTS",
        box=None, pad_edge=False, header_style="bold",
    )  # fmt: skip
    for f in facts:
        low, high = f["compute_capability"]
        table.add_row(
            f["engine"], f["version"], f["torch"], f["cuda"], f">= {f['driver_floor']}", f["python"],
            f["glibc"], f"{low} to {high}", " ".join(f["methods"]),
        )  # fmt: skip
    _wide().print(table)


def _print_release(facts: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in facts.items():
        if isinstance(value, dict):
            for name, inner in value.items():
                table.add_row(f"{key}.{name}", str(inner))
        elif value not in (None, "", []):
            table.add_row(key, " ".join(map(str, value)) if isinstance(value, list) else str(value))
    _wide().print(table)


def _wide() -> Console:
    return Console() if Console().is_terminal else Console(width=200)


def _document(**content: Any) -> None:
    print(json.dumps({"schema": 1, **content}))
