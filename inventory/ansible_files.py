"""Parsers of Ansible's two inventory formats and of the variable files beside an inventory."""

import ast
import re
import shlex
import warnings
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from inventory.errors import InventoryError
from inventory.groups import Tree
from inventory.nearest import did_you_mean
from inventory.ranges import expand
from inventory.yamlfile import Document, Loc, parse_yaml, read_text

__all__ = ["VariableFiles", "parse_ini", "parse_yaml_tree"]

_SECTIONS = ("hosts", "vars", "children")
_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_BRACKETS = re.compile(r"\[[^\]]*\]")
_NOT_IN_NAME = re.compile(r"[\s,!&*?\[\]]")
_VAULT_HEADER = "$ANSIBLE_VAULT;"
_EXTENSIONS = ("", ".yml", ".yaml", ".json")


def parse_yaml_tree(doc: Document) -> Tree:
    """A YAML (or JSON) inventory. Raises InventoryError naming file and line."""
    tree = Tree()
    for name, body in _mapping(doc, (), doc.data).items():
        _yaml_group(doc, (name,), body, tree)
    return tree.finish()


def _yaml_group(doc: Document, loc: Loc, body: Any, tree: Tree) -> None:
    name = str(loc[-1])
    group = tree.group(name)
    body = _mapping(doc, loc, body)
    for key in body:
        if key not in _SECTIONS:
            raise InventoryError(
                f"{doc.place((*loc, key))}: group {name!r} has unknown key {key!r}",
                hint=did_you_mean(key, _SECTIONS),
            )
    group.vars.update(_mapping(doc, (*loc, "vars"), body.get("vars")))
    for pattern, variables in _mapping(doc, (*loc, "hosts"), body.get("hosts")).items():
        place = (*loc, "hosts", pattern)
        _add_hosts(tree, name, pattern, _mapping(doc, place, variables), doc.place(place))
    for child, content in _mapping(doc, (*loc, "children"), body.get("children")).items():
        place = (*loc, "children", child)
        try:
            tree.add_child(name, child)
        except InventoryError as e:
            raise InventoryError(f"{doc.place(place)}: {e.message}", hint=e.hint) from e
        _yaml_group(doc, place, content, tree)


def _mapping(doc: Document, loc: Loc, value: Any) -> dict[str, Any]:
    """An absent section is empty; a lone word is a mapping with that key, as Ansible reads it."""
    if value is None:
        return {}
    if isinstance(value, str) and loc and loc[-1] in {"hosts", "children"}:
        return {value: None}
    if not isinstance(value, dict):
        what = ".".join(map(str, loc)) or "the inventory"
        raise InventoryError(
            f"{doc.place(loc)}: {what} is a {type(value).__name__}, a mapping is needed",
            hint='write each entry as "name:" on its own line',
        )
    return value


def parse_ini(text: str, path: Path) -> Tree:
    """An INI inventory. Raises InventoryError naming file and line."""
    tree = Tree()
    group, kind = "ungrouped", "hosts"
    mentioned: dict[str, int] = {}
    defined = {"all", "ungrouped"}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        place = f"{path}:{number}"
        if line.startswith("[") and (header := _SECTION.fullmatch(line)):
            group, kind = header[1], header[2] or "hosts"
            _note_section(group, kind, number, place, defined, mentioned)
            tree.group(group)
        elif kind == "children":
            mentioned.setdefault(_word(line), number)
            _ini_child(tree, group, _word(line), place)
        elif kind == "vars":
            key, value = _assignment(line, place)
            tree.group(group).vars[key] = value
        else:
            _ini_host(tree, group, line, place)
    for name, number in mentioned.items():
        if name not in defined:
            raise InventoryError(
                f"{path}:{number}: group {name!r} is used but never defined",
                hint=did_you_mean(name, sorted(defined)) or f"add a section [{name}]",
            )
    return tree.finish()


def _note_section(
    group: str, kind: str, number: int, place: str, defined: set[str], mentioned: dict[str, int]
) -> None:
    if kind not in _SECTIONS:
        raise InventoryError(f"{place}: unknown section kind {kind!r}", hint=did_you_mean(kind, _SECTIONS))
    if kind == "vars":
        mentioned.setdefault(group, number)
    else:
        defined.add(group)


def _word(line: str) -> str:
    return line.split("#", 1)[0].strip()


def _ini_child(tree: Tree, group: str, child: str, place: str) -> None:
    try:
        tree.add_child(group, child)
    except InventoryError as e:
        raise InventoryError(f"{place}: {e.message}", hint=e.hint) from e


def _ini_host(tree: Tree, group: str, line: str, place: str) -> None:
    try:
        pattern, *words = shlex.split(line, comments=True)
    except ValueError as e:
        raise InventoryError(f"{place}: {e}", hint="close the quote") from e
    variables = dict(_assignment(word, place) for word in words)
    _add_hosts(tree, group, pattern, variables, place)


def _assignment(text: str, place: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InventoryError(f"{place}: expected key=value, found {text!r}", hint="quote values with spaces")
    return key.strip(), _literal(value.strip())


def _literal(text: str) -> Any:
    """INI values are Python literals where they read as one, else the text itself (Ansible's rule)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, str | int | float | list | dict | None) else text


def _add_hosts(tree: Tree, group: str, pattern: str, variables: dict[str, Any], place: str) -> None:
    pattern, port = _split_port(pattern)
    try:
        names = expand(pattern)
    except InventoryError as e:
        raise InventoryError(f"{place}: {e.message}", hint=e.hint) from e
    for name in names:
        if not name or name.startswith("-") or _NOT_IN_NAME.search(name):
            raise InventoryError(f"{place}: {name!r} is not a host name", hint="write ranges like gpu[01:08]")
        tree.add_host(group, name, {**port, **variables})


def _split_port(pattern: str) -> tuple[str, dict[str, Any]]:
    """``gpu01:2222`` and ``[2001:db8::1]:2222`` name a port; a bare IPv6 address does not."""
    host, _, digits = pattern.rpartition(":")
    if _BRACKETS.sub("", pattern).count(":") != 1 or not digits.isdigit():
        return pattern, {}
    try:
        host = str(ip_address(host.strip("[]")))
    except ValueError:
        pass
    return host, {"ansible_port": int(digits)}


class VariableFiles:
    """``group_vars/`` and ``host_vars/`` beside an inventory; each name is read once.

    A file that ansible-vault encrypts is passed over and noted: eyas takes secrets by reference only.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._read: dict[tuple[str, str], dict[str, Any]] = {}

    def __call__(self, folder: str, name: str) -> dict[str, Any]:
        key = (folder, name)
        if key not in self._read:
            self._read[key] = self._load(self.folder / folder, name)
        return self._read[key]

    def _load(self, folder: Path, name: str) -> dict[str, Any]:
        if "/" in name or name in {".", ".."}:
            return {}
        merged: dict[str, Any] = {}
        for path in self._files(folder / name):
            merged.update(self._variables(path))
        return merged

    def _files(self, stem: Path) -> list[Path]:
        """The first of NAME, NAME.yml, NAME.yaml, NAME.json, as Ansible looks; NAME may be a folder."""
        for extension in _EXTENSIONS:
            path = stem.with_name(stem.name + extension)
            if path.is_dir() and not extension:
                return list(_walk(path))
            if path.is_file():
                return [path]
        return []

    def _variables(self, path: Path) -> dict[str, Any]:
        text = read_text(path)
        if text.startswith(_VAULT_HEADER):
            self.notes.append(f"{path} is vault-encrypted: not read")
            return {}
        doc = parse_yaml(text, path)
        if doc.data is not None and not isinstance(doc.data, dict):
            raise InventoryError(f"{path}: variables must be a mapping", hint='write "name: value" lines')
        return dict(doc.data or {})


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir():
            found += _walk(path)
        elif path.suffix in _EXTENSIONS:
            found.append(path)
    return found
