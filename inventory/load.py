"""Deployments from YAML: read, override per host, validate, and say exactly which line is wrong.

A deployment is named by its file: ``NAME`` is ``NAME.yml`` in ``./inventory/deployments`` or among the ones
eyas ships; anything with a slash or ending in .yml/.yaml is a path.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from inventory.errors import InventoryError, UsageError
from inventory.model import Deployment, Host
from inventory.nearest import did_you_mean
from inventory.yamlfile import Document, Loc, read_yaml

__all__ = [
    "REFERENCE",
    "SHIPPED",
    "Listed",
    "deployment_for",
    "find_deployment",
    "list_deployments",
    "load_deployment",
]

_HERE = Path(__file__).parent
SHIPPED = _HERE / "deployments"
REFERENCE = _HERE / "reference.yml"

#: Their values are never shown, not even wrong ones.
_SECRET_KEYS = {"api_key", "hub_token"}

_SUFFIXES = (".yml", ".yaml")


@dataclass(frozen=True)
class Listed:
    """One file of a deployments folder; ``error`` is set when it cannot be loaded."""

    name: str
    path: Path
    deployment: Deployment | None = None
    error: InventoryError | None = None


def load_deployment(
    name_or_path: str | Path,
    *,
    root: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    overrides_from: str = "the overrides",
) -> Deployment:
    """A validated deployment. ``root`` replaces the folders that are searched.

    ``overrides`` is laid over the file: mappings key by key, a null back to the default, anything else as a
    whole. Raises UsageError for an unknown name, InventoryError with file, line and key for a wrong file.
    """
    doc = read_yaml(find_deployment(name_or_path, root=root))
    if not isinstance(doc.data, dict):
        found = "empty" if doc.data is None else f"a {type(doc.data).__name__}"
        raise InventoryError(
            f"{doc.path} is {found}, a deployment is a mapping", hint=f"start from {REFERENCE.name}"
        )
    stem = doc.path.stem
    if doc.data.get("name", stem) != stem:
        raise InventoryError(
            f"{doc.place(('name',))}: name {doc.data['name']!r} differs from the file's name {stem!r}",
            hint="rename one; without the key the file's name counts",
        )
    return _validated(doc, {"name": stem, **doc.data}, overrides or {}, overrides_from)


def deployment_for(host: Host, name: str | None = None, *, root: Path | None = None) -> Deployment:
    """``name``, else the host's variable ``eyas_deployment``, with its ``eyas_overrides`` laid over it."""
    wanted = name or host.vars.get("eyas_deployment")
    if not wanted or not isinstance(wanted, str):
        raise UsageError(
            "no deployment is named for this host",
            hint="add --deployment NAME, or set eyas_deployment in the inventory",
            host=host.name,
        )
    overrides = host.vars.get("eyas_overrides") or {}
    if not isinstance(overrides, dict):
        raise InventoryError(
            "eyas_overrides is not a mapping", hint="write it as keys of a deployment", host=host.name
        )
    source = f"eyas_overrides of {host.name}"
    return load_deployment(wanted, root=root, overrides=overrides, overrides_from=source)


def find_deployment(name_or_path: str | Path, *, root: Path | None = None) -> Path:
    """The file of a deployment. Raises UsageError with the nearest name when there is none."""
    text = str(name_or_path)
    if not text.strip() or text.startswith("-"):
        raise UsageError(f"{text!r} is not a deployment", hint="see: invoke deployments")
    if "/" in text or text.endswith(_SUFFIXES):
        return Path(text)
    files = _files(root)
    if text not in files:
        raise UsageError(
            f"no deployment is named {text!r} in {' or '.join(map(str, _folders(root)))}",
            hint=did_you_mean(text, files) or "see: invoke deployments",
        )
    return files[text]


def list_deployments(*, root: Path | None = None) -> list[Listed]:
    """Every deployment by name; a broken file is listed with its error and hides no other."""
    return [_listed(name, path) for name, path in sorted(_files(root).items())]


def _listed(name: str, path: Path) -> Listed:
    try:
        return Listed(name, path, load_deployment(path))
    except InventoryError as e:
        return Listed(name, path, error=e)


def _folders(root: Path | None) -> list[Path]:
    return [root] if root else list(dict.fromkeys([Path.cwd() / "inventory" / "deployments", SHIPPED]))


def _files(root: Path | None) -> dict[str, Path]:
    """Name to path; an earlier folder wins."""
    found: dict[str, Path] = {}
    for folder in _folders(root):
        for path in sorted(folder.glob("*")) if folder.is_dir() else []:
            if path.suffix in _SUFFIXES and not path.name.startswith("."):
                found.setdefault(path.stem, path)
    return found


def _validated(
    doc: Document, data: dict[str, Any], overrides: Mapping[str, Any], overrides_from: str
) -> Deployment:
    touched: set[Loc] = set()
    merged = _merge(data, overrides, (), touched)
    try:
        text = json.dumps(merged, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise InventoryError(f"{doc.path}: {e}", hint="write finite numbers and plain values") from e
    try:
        return Deployment.model_validate_json(text, strict=True)
    except ValidationError as e:
        raise _explain(doc, e.errors(), touched, overrides_from) from e


def _merge(base: dict[str, Any], over: Mapping[str, Any], loc: Loc, touched: set[Loc]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        here = (*loc, key)
        inner = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(inner, dict):
            merged[key] = _merge(inner, value, here, touched)
            continue
        else:
            merged[key] = value
        touched.add(here)
    return merged


def _explain(
    doc: Document, errors: Sequence[ErrorDetails], touched: set[Loc], overrides_from: str
) -> InventoryError:
    """The first error in the message, with its place; the others one a line below it."""
    lines = []
    hints = []
    for error in errors:
        loc = tuple(error["loc"])
        inside = any(loc[:n] in touched for n in range(1, len(loc) + 1))
        place = overrides_from if inside else doc.place(loc)
        text, hint = _sentence(loc, error)
        lines.append(f"{place}: {text}")
        hints.append(hint)
    more = "".join(f"\n  also {line}" for line in lines[1:])
    return InventoryError(lines[0] + more, hint=hints[0] or f"every key is explained in {REFERENCE.name}")


def _sentence(loc: Loc, error: ErrorDetails) -> tuple[str, str]:
    key = ".".join(map(str, loc))
    if key in _SECRET_KEYS and error["type"] != "value_error":
        return f'{key} must be a reference, "env:NAME" or "file:PATH"', ""
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}", did_you_mean(str(loc[-1]), _valid_keys(loc[:-1]))
        case "missing":
            return f"key {key!r} is missing", f"add {loc[-1]}:"
        case "string_type" if isinstance(error["input"], int | float):
            return f"{key} must be text, found {error['input']!r}", f'quote it: {loc[-1]}: "{error["input"]}"'
        case "value_error":
            return f"{key}: {error['ctx']['error']}" if key else str(error["ctx"]["error"]), ""
    found = "" if isinstance(error["input"], dict | list) else f", found {error['input']!r}"
    message = error["msg"].replace("Input should be", "must be")
    return f"{key} {message}{found}", ""


def _valid_keys(loc: Loc) -> list[str]:
    """The keys of the model at this place of the schema."""
    model: type[BaseModel] | None = Deployment
    for part in loc:
        annotation = model.model_fields[str(part)].annotation if model else None
        model = next(_models(annotation), None)
    return list(model.model_fields) if model else []


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for option in get_args(annotation) if get_origin(annotation) in {Union, UnionType} else [annotation]:
        if isinstance(option, type) and issubclass(option, BaseModel):
            yield option
