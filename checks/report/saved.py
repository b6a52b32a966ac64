"""A folder of saved documents, told apart by their shape; a file that is none of them is named."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from checks.bench.model import BenchResult
from checks.report.collected import Collected
from inventory.errors import EyasError, InventoryError, UsageError
from inventory.jsonfile import read_json

__all__ = ["collect", "take"]

#: A document of a thousand hosts takes some MB; a model's weights were named by mistake.
LARGEST = 64 << 20


def collect(folder: Path) -> Collected:
    """Every ``*.json`` of the folder, in order of name; a later one of the same host and kind wins.

    Raises UsageError where there is no such folder, or not one document in it.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="--from FOLDER, with files that --json wrote")
    found = Collected()
    for path in sorted(folder.glob("*.json")):
        try:
            kind = take(found, _read(path))
            found.sources.append({"name": path.name, "kind": kind})
        except EyasError as e:
            found.unread.append({"name": path.name, "why": e.message})
    if not found.sources:
        why = f": {found.unread[0]['why']}" if found.unread else ""
        raise UsageError(
            f"no document of eyas in {folder}{why}",
            hint=f"fill it: invoke status --limit PATTERN --json > {folder}/status.json",
        )
    return found


def _read(path: Path) -> Any:
    if path.stat().st_size > LARGEST:
        raise InventoryError(f"larger than {LARGEST >> 20} MiB: no document of eyas")
    return read_json(path, "document")


def take(found: Collected, document: Any) -> str:
    """Add one document; returns its kind. Raises InventoryError when it is none that a report knows."""
    if not isinstance(document, Mapping):
        raise InventoryError("not a JSON object")
    if document.get("schema") != 1:
        raise InventoryError(f"schema {str(document.get('schema'))[:40]!r}, not 1")
    for kind, (fits, add) in _KINDS.items():
        if fits(document):
            add(found, document)
            found.looked.add(kind)
            return kind
    if "error" in document:
        raise InventoryError(f"the document of a failed run: {str(document['error'])[:200]}")
    raise InventoryError("no document of status, doctor, drift, facts, plan, bench or review")


def _entries(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    listed = document.get(key)
    return [x for x in listed if isinstance(x, Mapping)] if isinstance(listed, list) else []


def _every(document: Mapping[str, Any], *keys: str) -> bool:
    """A document of several hosts whose entries all have these keys; one with no host at all is a status."""
    entries = _entries(document, "hosts")
    return bool(entries) and all(k in e and isinstance(e.get("host"), str) for e in entries for k in keys)


def _lost(found: Collected, document: Mapping[str, Any]) -> None:
    found.unreachable += [u for u in _entries(document, "unreachable") if isinstance(u.get("host"), str)]


def _hosts(into: str) -> Callable[[Collected, Mapping[str, Any]], None]:
    def add(found: Collected, document: Mapping[str, Any]) -> None:
        getattr(found, into).extend(_entries(document, "hosts"))
        _lost(found, document)

    return add


def _one(into: str) -> Callable[[Collected, Mapping[str, Any]], None]:
    return lambda found, document: getattr(found, into).append(document)


def _bench(found: Collected, document: Mapping[str, Any]) -> None:
    several = _several(document)
    try:
        found.benches += [BenchResult.from_json(json.dumps(one)) for one in several]
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InventoryError(f"a bench whose {place or 'content'} does not read: {first['msg']}") from e
    for failed in _entries(document, "failed"):
        found.unread.append({"name": f"bench of {failed.get('host')}", "why": str(failed.get("error"))})


def _several(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results of a run over hosts, or the one that a file of the store is."""
    return _entries(document, "results") if document.get("task") == "bench" else [document]


def _is_bench(document: Mapping[str, Any]) -> bool:
    return document.get("task") == "bench" or document.get("kind") == "bench"


_Kind = tuple[Callable[[Mapping[str, Any]], bool], Callable[[Collected, Mapping[str, Any]], None]]
_KINDS: dict[str, _Kind] = {
    "bench": (_is_bench, _bench),
    "doctor": (
        lambda d: isinstance(d.get("findings"), list) and isinstance(d.get("outcomes"), list),
        _one("diagnoses"),
    ),
    "review": (lambda d: d.get("task") == "review", _hosts("reviews")),
    "drift": (lambda d: _every(d, "traits", "differences", "pending"), _hosts("drifts")),
    "plan": (lambda d: _every(d, "terms", "device_total_gib"), _hosts("plans")),
    "one plan": (lambda d: isinstance(d.get("terms"), list) and "device_total_gib" in d, _one("plans")),
    "facts": (lambda d: _every(d, "taken_at", "gpus"), _hosts("facts")),
    "one host's facts": (
        lambda d: isinstance(d.get("host"), str) and "taken_at" in d and "gpus" in d,
        _one("facts"),
    ),
    "status": (
        lambda d: (
            _every(d, "state", "deployment")
            or (d.get("hosts") == [] and isinstance(d.get("unreachable"), list))
        ),
        _hosts("rows"),
    ),
}
