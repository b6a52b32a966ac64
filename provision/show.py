"""What the inventory tasks print: a table for people, or one JSON document."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from inventory.hosts import Inventory
from inventory.load import Listed
from inventory.model import Deployment, Host

if TYPE_CHECKING:
    from provision.pin import Pinned
    from provision.wheellock import LockInfo

__all__ = ["show_deployments", "show_hosts", "show_lock", "show_pins"]

_SECRET = re.compile(r"pass(word|wd|phrase)?$|_pass_|token$|secret|api_key$|private_key$", re.IGNORECASE)


def _document(**content: Any) -> None:
    print(json.dumps({"schema": 1, **content}, default=str))


def _table(rows: Sequence[Sequence[str]], *columns: str) -> None:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    console = Console(soft_wrap=True) if Console().is_terminal else Console(width=10_000)
    console.print(table)


def masked(value: Any) -> Any:
    """Variables with the values of passwords, tokens and keys replaced, at any depth."""
    if isinstance(value, dict):
        return {k: "***" if _SECRET.search(k) and v else masked(v) for k, v in value.items()}
    return [masked(v) for v in value] if isinstance(value, list) else value


def show_hosts(inventory: Inventory, hosts: Sequence[Host], *, as_json: bool) -> None:
    if as_json:
        listed = [
            {**h.model_dump(exclude={"vars"}), "port": h.explicit_port, "vars": masked(h.vars)} for h in hosts
        ]
        source = str(inventory.source) if inventory.source else None
        _document(inventory=source, notes=list(inventory.notes), hosts=listed)
        return
    rows = [[h.name, _address(h), ",".join(h.groups), str(h.vars.get("eyas_deployment", "-"))] for h in hosts]
    _table(rows, "HOST", "ADDRESS", "GROUPS", "DEPLOYMENT")
    for note in inventory.notes:
        Console(stderr=True, soft_wrap=True).print(f"note: {note}", markup=False)


def _address(host: Host) -> str:
    user = f"{host.user}@" if host.user else ""
    return user + host.address + (f":{host.explicit_port}" if host.explicit_port else "")


def show_deployments(listed: Sequence[Listed], *, as_json: bool) -> int:
    """Exit code 2 when a file is broken; the others are shown all the same."""
    if as_json:
        _document(deployments=[_as_json(item) for item in listed])
    else:
        good = [_row(item.deployment) for item in listed if item.deployment]
        _table(good, "DEPLOYMENT", "ENGINE", "TARGET", "DRAFT", "CARDS", "PINNED")
        for item in listed:
            if item.error:
                Console(stderr=True, soft_wrap=True).print(f"error: {item.error}", markup=False)
    return 2 if any(item.error for item in listed) else 0


def _as_json(item: Listed) -> dict[str, Any]:
    error = {"message": item.error.message, "hint": item.error.hint} if item.error else None
    body = item.deployment.model_dump(mode="json") if item.deployment else None
    return {"name": item.name, "path": str(item.path), "deployment": body, "error": error}


def _row(d: Deployment) -> list[str]:
    models = [d.target, *([d.draft.model] if d.draft.model else [])]
    draft = d.draft.method + (f" {d.draft.model.label}" if d.draft.model else "")
    cards = d.tensor_parallel * d.pipeline_parallel
    pinned = "yes" if all(m.pinned for m in models) else "no"
    return [d.name, f"{d.engine} {d.engine_version}", d.target.label, draft, str(cards), pinned]


def show_pins(pins: "Sequence[Pinned]", *, as_json: bool) -> None:
    if as_json:
        _document(pins=[{**vars(p), "changed": p.changed} for p in pins])
        return
    rows = [[p.key, p.repo, p.before, p.commit if p.changed else "already pinned"] for p in pins]
    _table(rows, "MODEL", "REPO", "BEFORE", "NOW")


def show_lock(info: "LockInfo", *, as_json: bool) -> None:
    lock = info.lock
    if as_json:
        _document(
            path=str(info.path), changed=info.changed, seconds=round(info.seconds, 1), id=lock.id,
            name=lock.name, packages=dict(lock.packages), **vars(lock.target),
        )  # fmt: skip
        return
    verb = "wrote" if info.changed else "unchanged"
    print(f"{verb} {info.path}: {len(lock.packages)} packages, id {lock.id[:12]}, {info.seconds:.1f} s")
