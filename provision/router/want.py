"""What a router must be: its backends, its model, its key; from the inventory alone, or a refusal."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from inventory.catalogue import load_catalogue
from inventory.errors import CheckRefused, UsageError
from inventory.model import Deployment, Host
from inventory.nearest import did_you_mean
from inventory.routers import KINDS, Kind
from provision.secrets import Secrets

__all__ = ["ADDRESS", "Backend", "RouterWant", "kind_of", "router_want"]

#: Host variable: where the router reaches the endpoint, when that is not the SSH address.
ADDRESS = "eyas_endpoint_address"
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
ANYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MODEL = re.compile(r"[A-Za-z0-9_./:@+-]+")


@dataclass(frozen=True)
class Backend:
    """``endpoint``: address and port as in a URL."""

    name: str
    endpoint: str


@dataclass(frozen=True)
class RouterWant:
    """``listen``: address bound; ``counters``: metric names that count an engine's requests in flight."""

    kind: Kind
    port: int
    listen: str
    model: str
    backends: tuple[Backend, ...]
    counters: tuple[str, ...]
    api_key: str


def kind_of(word: str) -> Kind:
    found = next((k for k in KINDS if k == word), None)
    if found is None:
        raise UsageError(f"no router is named {word!r}", hint=did_you_mean(word, KINDS) or " | ".join(KINDS))
    return found


def router_want(
    members: Sequence[tuple[Host, Deployment]], kind: Kind, port: int, listen: str, secrets: Secrets
) -> RouterWant:
    """Raises UsageError or CheckRefused, each with what to change, before anything is touched."""
    if not 0 < port < 65536:
        raise UsageError(f"--port {port} is not 1 to 65535")
    _address(listen, "--listen")
    for host, d in members:
        _reachable(host, d)
    model = _same("model", {d.model_name for _, d in members}, "narrow --limit: a router serves one model")
    key = _same("api_key", {str(d.api_key) for _, d in members}, "give all of them the same api_key")
    if not _MODEL.fullmatch(model):
        raise UsageError(f"model name {model!r} cannot stand in a router's configuration",
                         hint="set served_model_name to letters, digits and ._/:@+-")  # fmt: skip
    value = secrets.read(key)
    assert value is not None
    return RouterWant(
        kind=kind,
        port=port,
        listen=listen,
        model=model,
        backends=tuple(Backend(_word(h.name), _endpoint(h, d)) for h, d in members),
        counters=_counters([d for _, d in members]),
        api_key=value,
    )


def _reachable(host: Host, d: Deployment) -> None:
    if d.host in LOOPBACK:
        both = "" if d.api_key else " and api_key: env:EYAS_API_KEY"
        raise CheckRefused(
            f"{d.name} listens on {d.host}: no router on another host reaches it",
            hint=f"set host: 0.0.0.0{both} in the deployment, then invoke rollout",
            host=host.name,
        )
    if d.nodes > 1:
        raise CheckRefused(
            f"{d.name} is one endpoint over {d.nodes} hosts",
            hint="name only the host that has the endpoint in --limit",
            host=host.name,
        )


def _same(what: str, found: set[str], hint: str) -> str:
    if len(found) != 1:
        raise CheckRefused(f"the backends differ in {what}: {', '.join(sorted(found))}", hint=hint)
    return found.pop()


def _word(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"host name {name!r} cannot name a backend", hint="letters, digits, '.', '_', '-'")
    return name


def _endpoint(host: Host, d: Deployment) -> str:
    address = str(host.vars.get(ADDRESS) or (host.address if d.host in ANYWHERE else d.host))
    if address in LOOPBACK:
        raise CheckRefused(
            f"its address {address} is loopback",
            hint=f"set {ADDRESS} to the address that the router reaches",
            host=host.name,
        )
    return f"{_address(address, f'the address of {host.name}')}:{d.port}"


def _address(text: str, what: str) -> str:
    """As in a URL. A name is for the router's own resolver."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", text):
            return text
        raise UsageError(f"{what}, {text!r}, is no address", hint="an IP address or a host name") from None
    return f"[{text}]" if address.version == 6 else text


def _counters(deployments: Sequence[Deployment]) -> tuple[str, ...]:
    """The newest known spelling of each engine; a page without them only means that nobody counts."""
    catalogue = load_catalogue()
    releases = [
        catalogue.release(e, catalogue.releases(e)[-1]) for e in sorted({d.engine for d in deployments})
    ]
    roles = ("requests_running", "requests_waiting")
    return tuple(r.metrics[role] for r in releases for role in roles if role in r.metrics)
