"""Which machines there are: an Ansible inventory file, and selection from it by Ansible patterns.

``ansible -i`` reads the same file. Not read: dynamic inventory scripts and vault-encrypted values. Of the
variables only ``ansible_host``, ``ansible_port``, ``ansible_user`` (and their older ``ansible_ssh_*`` names)
and ``eyas_*`` are rendered as templates; the others are handed on as they are written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from inventory import patterns
from inventory.ansible_files import VariableFiles, parse_ini, parse_yaml_tree
from inventory.errors import InventoryError, UsageError
from inventory.groups import Tree
from inventory.model import Host
from inventory.yamlfile import VAULTED, parse_yaml, read_text

__all__ = ["DEFAULT_FILES", "Inventory", "default_inventory", "load_inventory"]

#: Where an inventory is looked for when none is named: below the current folder, then below eyas's own.
DEFAULT_FILES = ("inventory/hosts.yml", "inventory/hosts.yaml", "inventory/hosts.ini")

_HOME = Path(__file__).resolve().parent.parent
_NO_INVENTORY = "give --inventory FILE, or write inventory/hosts.yml like inventory/hosts.example.yml"

_YAML = {".yml", ".yaml", ".json"}
_SCRIPTS = {".py", ".sh", ".rb", ".pl"}


@dataclass(frozen=True)
class Inventory:
    """``groups`` maps each group to all its host names, nested ones included. ``notes``: what was skipped."""

    hosts: Mapping[str, Host] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"all": (), "ungrouped": ()})
    source: Path | None = None
    notes: tuple[str, ...] = ()

    def select(self, pattern: str | None) -> list[Host]:
        """The hosts a pattern names. Raises UsageError for no match: empty never means all.

        A plain name (``box``, ``user@box``, an address) that is not in the inventory is taken as it is, for
        ssh_config to resolve.
        """
        parts = patterns.split(pattern)
        try:
            names = patterns.match(parts, self._names, self.groups)
        except UsageError as e:
            if self.source is not None:
                raise
            raise UsageError(f"{e.message} (no inventory was found)", hint=_NO_INVENTORY) from e
        return [self.hosts[n] if n in self.hosts else _outside(n) for n in names]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.hosts)


def _outside(name: str) -> Host:
    user, at, address = name.rpartition("@")
    return Host(name=address, address=address, user=user) if at else Host(name=name, address=name)


def default_inventory(
    path: str | Path | None = None, *, cwd: Path | None = None, home: Path | None = None
) -> Inventory:
    """The named inventory, else the first of DEFAULT_FILES below ``cwd``, then ``home``, else an empty one.

    home: eyas's checkout or the folder it is installed in, where deployments and locks are looked for too.

    With an empty one only names that ssh_config knows can be selected; the packaged example is never used.
    """
    if path is not None:
        if not str(path).strip() or str(path).startswith("-"):
            raise InventoryError(f"--inventory {str(path)!r} is not a file", hint="name an inventory file")
        return load_inventory(Path(path))
    places = (base / f for base in (cwd or Path.cwd(), home or _HOME) for f in DEFAULT_FILES)
    found = next((p for p in places if p.exists()), None)
    return load_inventory(found) if found else Inventory()


def load_inventory(path: Path) -> Inventory:
    """Read an Ansible inventory with its group_vars and host_vars. Raises InventoryError."""
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.iterdir() if p.is_file())[:8]) or "no files"
        raise InventoryError(
            f"{path} is a folder ({inside})", hint=f"name one file: --inventory {path}/hosts.yml"
        )
    tree = _parse(path)
    files = VariableFiles(path.parent)
    hosts = {
        name: _host(path, name, groups, tree.variables(name, groups, files))
        for name, groups in tree.groups_of().items()
    }
    members = {name: tuple(tree.members(name)) for name in tree.groups}
    return Inventory(hosts, members, path, tuple(files.notes))


def _parse(path: Path) -> Tree:
    text = read_text(path)
    if path.suffix in _SCRIPTS or text.startswith("#!"):
        raise InventoryError(
            f"{path} is a dynamic inventory script, eyas reads files only",
            hint=f"ansible-inventory -i {path} --list --yaml > hosts.yml",
        )
    if path.suffix in _YAML:
        return parse_yaml_tree(parse_yaml(text, path))
    if not path.suffix:
        try:
            doc = parse_yaml(text, path)
        except InventoryError:
            doc = None
        if doc is not None and isinstance(doc.data, dict):
            return parse_yaml_tree(doc)
    return parse_ini(text, path)


def _host(path: Path, name: str, groups: list[str], variables: dict[str, Any]) -> Host:
    rendered = _Rendered(path, name, variables)
    port = rendered.get("ansible_port", "ansible_ssh_port")
    known: dict[str, Any] = {} if port is None else {"port": _port(path, name, port)}
    variables.update({k: rendered.get(k) for k in variables if k.startswith("eyas_")})
    return Host(
        name=name,
        address=rendered.word("ansible_host", "ansible_ssh_host") or name,
        user=rendered.word("ansible_user", "ansible_ssh_user"),
        groups=tuple(g for g in groups if g != "all"),
        vars=variables,
        **known,
    )


def _port(path: Path, name: str, value: Any) -> int:
    if str(value).isdigit() and 0 < int(value) < 65536 and not isinstance(value, bool):
        return int(value)
    raise InventoryError(
        f"{path}: host {name}: port {value!r} is not 1 to 65535", hint="correct ansible_port"
    )


class _Rendered:
    """Templates in the few variables eyas itself uses; ``{{ inventory_hostname }}.lan`` is common."""

    def __init__(self, path: Path, name: str, variables: dict[str, Any]) -> None:
        self.where = f"{path}: host {name}"
        self.variables = variables
        self.context = {
            **variables,
            "inventory_hostname": name,
            "inventory_hostname_short": name.split(".", maxsplit=1)[0],
        }

    def get(self, *names: str) -> Any:
        key = next((n for n in names if self.variables.get(n) is not None), None)
        return None if key is None else self._value(key, self.variables[key])

    def word(self, *names: str) -> str | None:
        """The value as one word that no program could take for an option."""
        value = self.get(*names)
        if value is None:
            return None
        text = str(value)
        if not text or text.startswith("-") or any(c.isspace() for c in text):
            raise InventoryError(
                f"{self.where}: {names[0]} {text!r} is not one word", hint=f"correct {names[0]}"
            )
        return text

    def _value(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: self._value(key, v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._value(key, v) for v in value]
        if value == VAULTED:
            raise InventoryError(f"{self.where}: {key} is vault-encrypted", hint=f"write {key} in plain text")
        return self._template(key, value) if isinstance(value, str) and "{{" in value else value

    def _template(self, key: str, text: str) -> str:
        from jinja2 import StrictUndefined, TemplateError  # noqa: PLC0415 - few inventories have templates
        from jinja2.sandbox import SandboxedEnvironment  # noqa: PLC0415

        env = SandboxedEnvironment(undefined=StrictUndefined)
        try:
            for _ in range(5):  # a variable may itself be a template
                if "{{" not in text:
                    return text
                text = env.from_string(text).render(self.context)
        except (TemplateError, TypeError, ValueError, ArithmeticError) as e:
            raise InventoryError(
                f"{self.where}: {key}: {e}", hint=f"only plain Jinja is rendered; write {key} out"
            ) from e
        raise InventoryError(f"{self.where}: {key} refers to itself", hint=f"write {key} out")
