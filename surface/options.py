"""The options that many tasks share, and what they select."""

from typing import TYPE_CHECKING

from inventory.errors import UsageError

if TYPE_CHECKING:  # a task loads what it uses
    from inventory.model import Host

__all__ = ["LIMIT", "SELECT", "fleet_of", "select"]

SELECT = {
    "host": "Ansible pattern: names, groups, gpu[01:08], globs, !excluded, commas. Required.",
    "inventory": "An Ansible inventory, YAML or INI. Default: inventory/hosts.yml or .ini.",
    "accept-new-host-keys": "Record the keys of hosts that known_hosts doesn't have yet.",
    "forks": "At most this many hosts at once.",
    "json": "One JSON document on stdout; progress goes to stderr.",
}
LIMIT = {
    "limit": "Ansible pattern: names, groups, gpu[01:08], globs, !excluded, commas. Required.",
    **{k: v for k, v in SELECT.items() if k != "host"},
}


def select(host: str | None, inventory: str | None, option: str = "--host") -> "list[Host]":
    from inventory.hosts import default_inventory

    if not host:
        raise UsageError("no host given", hint=f"{option} NAME (or a group; `invoke hosts` lists them)")
    return default_inventory(inventory).select(host)


def fleet_of(inventory: str | None) -> str:
    """What is one fleet: the inventory file, however it was named."""
    from inventory.hosts import default_inventory

    source = default_inventory(inventory).source
    return str(source.resolve()) if source else "ssh_config"
