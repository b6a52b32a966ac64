"""Change one value of a deployment's file in place; comments, order and all else stay byte for byte."""

import json
import re
from typing import Any

from inventory.errors import InventoryError
from inventory.yamlfile import Document, Loc, parse_yaml

__all__ = ["set_value"]

_SCALAR = r"(?P<value>\"[^\"]*\"|'[^']*'|\[[^\]]*\]|[^\s#]+)"
_INDENT = "  "


def set_value(doc: Document, text: str, loc: Loc, value: Any) -> str:
    """The text with ``loc`` (one or two keys) set to ``value``. Raises InventoryError when a line can't be
    edited without touching more; the proof is that the result reads as before but for this one key.
    """
    lines = text.splitlines(keepends=True)
    newline = "\r\n" if "\r\n" in text else "\n"
    if loc in doc.lines:
        edited = _replaced(lines, doc.lines[loc] - 1, str(loc[-1]), json.dumps(value))
    else:
        edited = _added(lines, doc, loc, f"{loc[-1]}: {json.dumps(value)}", newline)
    result = "".join(edited)
    if not _only_changed(doc, result, loc, value):
        raise InventoryError(
            f"{doc.place(loc)}: cannot edit this line without touching more",
            hint=f"set {'.'.join(map(str, loc))} to {json.dumps(value)} there yourself",
        )
    return result


def _replaced(lines: list[str], at: int, key: str, value: str) -> list[str]:
    pattern = rf"(?P<head>\s*{re.escape(key)}:\s*){_SCALAR}(?P<tail>\s*(?:#.*)?)"
    body = lines[at].rstrip("\r\n")
    match = re.fullmatch(pattern, body)
    if match is None:
        return lines
    new = f"{match['head']}{value}{match['tail']}{lines[at][len(body) :]}"
    return [*lines[:at], new, *lines[at + 1 :]]


def _added(lines: list[str], doc: Document, loc: Loc, line: str, newline: str) -> list[str]:
    """A new key: at the end of the file, or below the first line of the mapping it belongs to."""
    if len(loc) == 1:
        last = lines[-1:] and not lines[-1].endswith(("\n", "\r"))
        return [*lines, *([newline] if last else []), line + newline]
    parent = loc[:-1]
    inner = [n for place, n in doc.lines.items() if len(place) == len(loc) and place[:-1] == parent]
    if not inner:
        return [*lines, f"{parent[0]}:{newline}", f"{_INDENT}{line}{newline}"]
    first = lines[min(inner) - 1]
    indent = first[: len(first) - len(first.lstrip())]
    return [*lines[: min(inner) - 1], f"{indent}{line}{newline}", *lines[min(inner) - 1 :]]


def _only_changed(doc: Document, text: str, loc: Loc, value: Any) -> bool:
    try:
        after = parse_yaml(text, doc.path).data
    except InventoryError:
        return False
    return bool(_with(doc.data, loc, value) == after)


def _with(data: dict[str, Any], loc: Loc, value: Any) -> dict[str, Any]:
    key, *rest = map(str, loc)
    inner = data.get(key)
    if rest:
        return {**data, key: _with(inner if isinstance(inner, dict) else {}, tuple(rest), value)}
    return {**data, key: value}
