"""The group graph of an Ansible inventory, and which variable wins.

Precedence, lowest first, as Ansible applies it: group variables written in the inventory file (parents
before children, then ``ansible_group_priority``, then by name), ``group_vars/all``, ``group_vars/GROUP`` in
the same group order, host variables in the inventory file, ``host_vars/HOST``. A later one replaces a whole
value; nothing is merged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inventory.errors import InventoryError

__all__ = ["Group", "Tree"]

ALL, UNGROUPED = "all", "ungrouped"


@dataclass
class Group:
    name: str
    vars: dict[str, Any] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


class Tree:
    """Filled by a parser, then closed by ``finish``. Names are in file order."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {ALL: Group(ALL), UNGROUPED: Group(UNGROUPED)}
        self.hosts: dict[str, dict[str, Any]] = {}
        self._depth: dict[str, int] = {}

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))

    def add_host(self, group: str, name: str, variables: dict[str, Any]) -> None:
        self.hosts.setdefault(name, {}).update(variables)
        if name not in self.group(group).hosts:
            self.group(group).hosts.append(name)

    def add_child(self, parent: str, child: str) -> None:
        self.group(child)
        if child == ALL or parent in self.descendants(child):
            raise InventoryError(
                f"group {child!r} would contain itself (through {parent!r})", hint="cut the loop"
            )
        if child not in self.group(parent).children:
            self.group(parent).children.append(child)

    def finish(self) -> "Tree":
        """Put orphan groups under ``all``, orphan hosts under ``ungrouped``, and fix each group's depth."""
        owned = {c for g in self.groups.values() for c in g.children}
        for name in self.groups:
            if name != ALL and name not in owned:
                self.groups[ALL].children.append(name)
        grouped = {h for g in self.groups.values() if g.name not in {ALL, UNGROUPED} for h in g.hosts}
        self.groups[UNGROUPED].hosts = [h for h in self.hosts if h not in grouped]
        self._set_depth()
        return self

    def _set_depth(self) -> None:
        self._depth = {ALL: 0}
        pending = [ALL]
        while pending:
            name = pending.pop()
            for child in self.groups[name].children:
                if self._depth.get(child, 0) <= self._depth[name]:
                    self._depth[child] = self._depth[name] + 1
                    pending.append(child)

    def descendants(self, name: str) -> list[str]:
        """The group itself and everything below it, each once."""
        found = [name]
        for parent in found:
            found += [c for c in self.groups[parent].children if c not in found]
        return found

    def members(self, name: str) -> list[str]:
        """Names of all hosts in the group or below it, each once. ``all`` is every host, in file order."""
        if name == ALL:
            return list(self.hosts)
        return list(dict.fromkeys(h for g in self.descendants(name) for h in self.groups[g].hosts))

    def ranked(self, names: list[str]) -> list[str]:
        """Group names from weakest to strongest."""
        return sorted(names, key=lambda n: (self._depth[n], self._priority(n), n))

    def _priority(self, name: str) -> int:
        value = self.groups[name].vars.get("ansible_group_priority", 1)
        try:
            return int(value)
        except (TypeError, ValueError) as e:
            raise InventoryError(
                f"group {name!r}: ansible_group_priority {value!r} is not a number", hint="write a number"
            ) from e

    def groups_of(self) -> dict[str, list[str]]:
        """For each host its groups, weakest first, ``all`` included."""
        of: dict[str, list[str]] = {h: [] for h in self.hosts}
        for name in self.ranked(list(self.groups)):
            for host in self.members(name):
                of[host].append(name)
        return of

    def variables(
        self, host: str, groups: list[str], files: Callable[[str, str], dict[str, Any]]
    ) -> dict[str, Any]:
        """All variables of one host, merged. ``files(folder, name)`` reads group_vars and host_vars."""
        merged: dict[str, Any] = {}
        for name in groups:
            merged.update(self.groups[name].vars)
        merged.pop("ansible_group_priority", None)
        for name in groups:
            merged.update(files("group_vars", name))
        merged.update(self.hosts[host])
        merged.update(files("host_vars", host))
        return merged
