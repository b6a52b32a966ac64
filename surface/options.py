"""The options that many tasks share, and what they select."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from invoke import Context

from inventory.defaults import FORKS
from inventory.errors import UsageError
from surface.commandline import command

if TYPE_CHECKING:  # a task loads what it uses
    from collections.abc import Sequence

    from inventory.model import Host
    from provision.run import Flags

__all__ = ["LIMIT", "SELECT", "Fleet", "fleet_command", "fleet_of", "front_of", "one_host", "select"]

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


@dataclass(frozen=True)
class Fleet:
    """The options of every task over a fleet, as typed."""

    limit: str | None = None
    inventory: str | None = None
    accept_new_host_keys: bool = False
    forks: int = FORKS
    json: bool = False

    def hosts(self) -> "list[Host]":
        return select(self.limit, self.inventory, "--limit")

    def flags(self, **more: Any) -> "Flags":
        """``more``: what this task has besides: check, detailed_exitcode and so on."""
        from provision.run import Flags

        keys = self.accept_new_host_keys
        return Flags(accept_new_host_keys=keys, forks=self.forks, as_json=self.json, **more)


def fleet_command(*, help: dict[str, str] | None = None, **options: Any) -> Callable[..., Any]:
    """`command` for a task over a fleet: its body takes a Fleet, its command line the options of one."""
    shared = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Fleet).parameters.values()]

    def wrap(body: Callable[..., int | None]) -> Any:
        context, _, *own = inspect.signature(body).parameters.values()

        @functools.wraps(body)
        def run(c: Context, **given: Any) -> int | None:
            fleet = Fleet(**{p.name: given.pop(p.name) for p in shared})
            return body(c, fleet, **given)

        whole: Any = run  # invoke reads the signature that it is told
        whole.__signature__ = inspect.Signature([context, *own, *shared])
        return command(help={**LIMIT, **(help or {})}, **options)(whole)

    return wrap


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


def one_host(pattern: str | None, inventory: str | None, option: str = "--host") -> "Host":
    """The one host of a router. Raises UsageError when the pattern names more."""
    found = select(pattern, inventory, option)
    if len(found) != 1:
        names = ", ".join(h.name for h in found[:4])
        raise UsageError(
            f"a router runs on one host, {option} names {len(found)} ({names})", hint=f"{option} NAME"
        )
    return found[0]


def front_of(router: str, hosts: "Sequence[Host]", inventory: str | None) -> "dict[str, Any] | None":
    """The router's host in a plan's words: the one named, else the hosts' variable ``eyas_router``."""
    from provision.rollout.plan import host_words

    known = {str(h.vars["eyas_router"]) for h in hosts if h.vars.get("eyas_router")}
    if not router and len(known) > 1:
        names = ", ".join(sorted(known))
        raise UsageError(
            f"these hosts are behind several routers: {names}", hint="one rollout for each: --limit"
        )
    name = router or next(iter(known), "none")
    return None if name == "none" else host_words(one_host(name, inventory, "--router"))
