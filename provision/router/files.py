"""The files of a router, from what is wanted and what is drained: pure, so the same wish is no change."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache

import jinja2

from inventory.routers import load_routers
from provision import layout
from provision.programs import FOLDER, program
from provision.release import secret_digest
from provision.router.want import RouterWant

__all__ = ["CREDENTIALS", "HERE", "UNIT", "Files", "key_file", "render"]

HERE = f"{layout.STATE}/router"
UNIT = "eyas_router.service"
CREDENTIALS = f"{layout.ETC}/credentials/router"


@dataclass(frozen=True)
class Files:
    """``folder``: name -> content below HERE; ``unit``: of systemd; ``key_path``: the credential's file."""

    folder: dict[str, str]
    unit: str
    key_path: str

    @property
    def config(self) -> str:
        """The file that says which backends there are."""
        return "haproxy.cfg" if "haproxy.cfg" in self.folder else "router.json"


def key_file(want: RouterWant) -> bytes:
    """HAProxy reads it as a map; the other router's launcher takes the second word."""
    return f"api-key {want.api_key}\n".encode()


def render(want: RouterWant, drained: Iterable[str], *, env: str = "") -> Files:
    """``env``: folder of the Python environment that a sglang-router runs from."""
    names = {b.name for b in want.backends}
    out = sorted(names & set(drained))
    digest = secret_digest(want.api_key, "router") or ""
    document = {
        "schema": 1,
        "kind": want.kind,
        "port": want.port,
        "listen": want.listen,
        "listen_url": f"[{want.listen}]" if ":" in want.listen else want.listen,
        "model": want.model,
        "backends": [asdict(b) for b in want.backends],
        "counters": list(want.counters),
        "drained": out,
        "api_key_digest": digest,
        **_own(want),
    }
    path = f"{CREDENTIALS}/api-key-{digest[:16]}.map"
    folder = {
        "router.json": json.dumps(document, indent=1, sort_keys=True),
        "router_ctl.py": program("router_ctl.py").decode(),
    }
    if want.kind == "haproxy":
        folder["haproxy.cfg"] = _haproxy(want, str(document["listen_url"]), out)
    else:
        folder["router_serve.py"] = program("router_serve.py").decode()
    unit = _template(
        "eyas_router.service.j2",
        want,
        user=layout.USER,
        api_key=path,
        python=f"{env}/bin/python",
        settings=_settings(want, document),
    )
    return Files(folder, unit, path)


def _haproxy(want: RouterWant, listen: str, drained: list[str]) -> str:
    """With a name for all of it but the weights, which change while it runs."""
    whole = _template("router_haproxy.cfg.j2", want, listen=listen, drained=[], digest="")
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return _template("router_haproxy.cfg.j2", want, listen=listen, drained=drained, digest=digest)


def _own(want: RouterWant) -> dict[str, object]:
    if want.kind == "haproxy":
        return {}
    # Its metrics have no key and so no other door than the loopback's.
    return {"policy": load_routers().sglang_router.policy, "metrics_port": _beside(want.port)}


def _beside(port: int) -> int:
    return port + 1 if port < 65535 else port - 1


def _settings(want: RouterWant, document: dict[str, object]) -> str:
    """What only a restart changes; as a part of the unit it asks for one."""
    if want.kind == "haproxy":
        return "all are read again on reload"
    fixed = {k: v for k, v in document.items() if k not in {"backends", "drained", "counters"}}
    text = json.dumps(fixed, sort_keys=True) + program("router_serve.py").decode()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(  # noqa: S701 - configuration, not HTML; every word was checked
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )


def _template(name: str, want: RouterWant, **words: object) -> str:
    known = {
        **vars(want),
        "folder": HERE,
        "run": "/run/eyas_router",
        "haproxy": load_routers().haproxy.binary,
    }
    known.pop("api_key")
    return _templates().get_template(name).render({**known, **words})
