"""YAML with places: plain data plus the line of every key, so that an error can point at it.

Only what JSON could hold comes out (str, int, float, bool, None, list, dict with string keys); a date stays
the text it was written as. Stricter than PyYAML where leniency hides a mistake: a key given twice, an alias
bomb, a second document, an unknown tag.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from inventory.errors import InventoryError

__all__ = ["VAULTED", "Document", "Loc", "parse_yaml", "read_text", "read_yaml"]

Loc = tuple[str | int, ...]

#: What stands for a value that ansible-vault encrypts; eyas never decrypts one.
VAULTED = "<ansible-vault>"

MAX_BYTES = 2 * 1024 * 1024
MAX_NODES = 200_000
MAX_REMEMBERED = 32_000  # characters
_PREFIX = "tag:yaml.org,2002:"
_AS_WRITTEN = {f"{_PREFIX}str", f"{_PREFIX}timestamp", f"{_PREFIX}value", "!unsafe"}
_MERGE = f"{_PREFIX}merge"


@dataclass(frozen=True)
class Document:
    """``lines`` maps a location, e.g. ``("draft", "method")``, to its line number (from 1)."""

    path: Path
    data: Any
    lines: dict[Loc, int] = field(default_factory=dict)

    def place(self, loc: Loc = ()) -> str:
        """``file:line`` of this location or of the nearest thing around it."""
        for size in range(len(loc), -1, -1):
            if loc[:size] in self.lines:
                return f"{self.path}:{self.lines[loc[:size]]}"
        return str(self.path)


def read_text(path: Path) -> str:
    """The file as UTF-8. Raises InventoryError when it is missing, unreadable, too big or not text."""
    try:
        raw = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
    except FileNotFoundError as e:
        raise InventoryError(f"{path} does not exist", hint="check the path") from e
    except IsADirectoryError as e:
        raise InventoryError(f"{path} is a folder", hint="name a file in it") from e
    except OSError as e:
        raise InventoryError(f"cannot read {path}: {e.strerror}", hint=f"ls -l {path}") from e
    if raw is None:
        raise InventoryError(f"{path} is larger than {MAX_BYTES // 1024} KiB", hint="name the right file")
    return _decode(path, raw)


def _decode(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise InventoryError(f"{path}:{line}: not UTF-8 text", hint="save the file as UTF-8") from e


def read_yaml(path: Path) -> Document:
    """Read one YAML document. Raises InventoryError naming file and line."""
    return parse_yaml(read_text(path), path)


def parse_yaml(text: str, path: Path) -> Document:
    """The same for text already read; ``path`` is only named in errors."""
    try:
        root = (_remembered if len(text) <= MAX_REMEMBERED else _composed)(text)
        builder = _Builder(path)
        data = builder.build(root, ()) if root is not None else None
    except yaml.MarkedYAMLError as e:
        raise _syntax(path, e) from e
    except yaml.YAMLError as e:
        reason = getattr(e, "reason", None) or str(e)
        raise InventoryError(f"{path}: not YAML: {reason}", hint="it must be plain text") from e
    except RecursionError as e:
        raise InventoryError(f"{path}: nested too deeply", hint="flatten it") from e
    return Document(path, data, builder.lines)


def _composed(text: str) -> Node | None:
    return yaml.compose(text, Loader=yaml.SafeLoader)


#: A deployment is read again for each host of a fleet; parsing is nearly all of that. Nodes are only read.
_remembered = lru_cache(maxsize=32)(_composed)


def _syntax(path: Path, e: yaml.MarkedYAMLError) -> InventoryError:
    mark = e.problem_mark or e.context_mark
    line = f":{mark.line + 1}" if mark else ""
    problem = e.problem or e.context or "broken"
    hint = "correct that line"
    if "\\t" in problem or "'\t'" in problem:
        hint = "indent with spaces, YAML allows no tabs"
    elif "single document" in str(e):
        hint = "keep one document, without a '---' in the middle"
    return InventoryError(f"{path}{line}: not YAML: {problem}", hint=hint)


class _Builder:
    """Nodes to data. Aliases are walked again, so the node budget also bounds their expansion."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Loc, int] = {}
        self.left = MAX_NODES
        self.open: set[int] = set()
        self.scalars = SafeConstructor()

    def fail(self, node: Node, message: str, hint: str) -> InventoryError:
        return InventoryError(f"{self.path}:{node.start_mark.line + 1}: {message}", hint=hint)

    def build(self, node: Node, loc: Loc) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.fail(node, f"expands to more than {MAX_NODES} values", "write fewer aliases")
        if id(node) in self.open:
            raise self.fail(node, "an alias contains itself", "remove the alias")
        self.lines.setdefault(loc, node.start_mark.line + 1)
        if isinstance(node, ScalarNode):
            return self.scalar(node)
        self.open.add(id(node))
        try:
            return self.mapping(node, loc) if isinstance(node, MappingNode) else self.sequence(node, loc)
        finally:
            self.open.discard(id(node))

    def scalar(self, node: ScalarNode) -> Any:
        if node.tag in _AS_WRITTEN:
            return node.value
        if node.tag in {"!vault", "!vault-encrypted"}:
            return VAULTED
        kind = node.tag.removeprefix(_PREFIX)
        if kind not in {"null", "bool", "int", "float"}:
            raise self.fail(node, f"tag {node.tag} is not supported here", "write a plain value")
        try:
            return getattr(self.scalars, f"construct_yaml_{kind}")(node)
        except (ValueError, KeyError) as e:
            raise self.fail(node, f"{node.value[:40]!r} is not a number", "quote it") from e

    def sequence(self, node: Node, loc: Loc) -> list[Any]:
        if not isinstance(node, SequenceNode) or node.tag != f"{_PREFIX}seq":
            raise self.fail(node, f"tag {node.tag} is not supported here", "write a plain list")
        return [self.build(item, (*loc, i)) for i, item in enumerate(node.value)]

    def mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        if node.tag != f"{_PREFIX}map":
            raise self.fail(node, f"tag {node.tag} is not supported here", "write plain keys and values")
        own: dict[str, Any] = {}
        seen: dict[str, int] = {}
        merged: list[Node] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged.append(value)
                continue
            name = self.key(key)
            line = key.start_mark.line + 1
            if name in seen:
                raise self.fail(key, f"key {name!r} is given twice (first on line {seen[name]})", "keep one")
            seen[name] = line
            self.lines[(*loc, name)] = line
            own[name] = self.build(value, (*loc, name))
        for source in merged:
            for base in self.bases(source, loc):
                own = {**base, **own}
        return own

    def key(self, node: Node) -> str:
        if not isinstance(node, ScalarNode) or not node.value:
            raise self.fail(node, "a key must be a word", "give the key a name")
        return str(node.value)

    def bases(self, node: Node, loc: Loc) -> Iterator[dict[str, Any]]:
        """The mappings a ``<<`` brings in; an earlier one wins over a later one."""
        for part in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(part, MappingNode):
                raise self.fail(part, "'<<' needs a mapping", "name an anchor of a mapping")
            yield self.build(part, loc)
