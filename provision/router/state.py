"""What a router's host has and what its router says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inventory.errors import ChangeFailed, CheckRefused, EyasError, HostUnreachable
from inventory.routers import load_routers
from provision import layout
from provision.programs import program
from provision.router.files import HERE, UNIT
from provision.shell import Shell

__all__ = ["HostState", "NotBehind", "Router", "look"]


class NotBehind(CheckRefused):
    """The router has no such backend."""


@dataclass(frozen=True)
class HostState:
    """``files``: content by name, None when absent; ``unit``: systemd's words; ``package``: its version.

    ``prepared``: eyas's user and folders are there; ``envs``, ``uv``: complete environments, versions of uv.
    """

    files: Mapping[str, str | None]
    unit_text: str | None
    unit: Mapping[str, str]
    key_mode: str | None
    package: str | None
    prepared: bool
    envs: frozenset[str]
    uv: frozenset[str]
    python: str
    glibc: str

    @property
    def drained(self) -> tuple[str, ...]:
        """The backends that somebody took out; a new configuration keeps them so."""
        try:
            return tuple(json.loads(self.files.get("router.json") or "{}").get("drained", ()))
        except (ValueError, AttributeError, TypeError):
            return ()

    @property
    def why_not_running(self) -> str:
        reasons = {
            "not active": self.unit.get("ActiveState") != "active",
            "not enabled": self.unit.get("UnitFileState") != "enabled",
            "drop-ins of others, which go to /var/lib/eyas/set-aside": bool(self.unit.get("DropInPaths")),
        }
        return ", ".join(text for text, true in reasons.items() if true)


def look(shell: Shell, key_path: str) -> HostState:
    """One round trip, read only. Raises HostUnreachable when nobody could look."""
    package = load_routers().haproxy.package
    words = (HERE, UNIT, key_path, package, f"{layout.ROOT}/envs", layout.UV)
    got = shell.run(
        ("python3", "-sEB", "-", *words), timeout=60, stdin=program("router_look.py"), check=False
    )
    told = _marked(got.stdout)
    if told is None:
        raise HostUnreachable(f"nobody could look at the router: {got.tail(3)}", host=shell.host.name)
    return HostState(
        files=told["files"],
        unit_text=told["unit_text"],
        unit=told["unit"],
        key_mode=told["key_mode"],
        package=told["package"],
        prepared=bool(told["user"]),
        envs=frozenset(told["envs"]),
        uv=frozenset(told["uv"]),
        python=told["python"],
        glibc=told["glibc"],
    )


def _marked(text: str) -> dict[str, Any] | None:
    line = next((x for x in text.splitlines() if x.startswith("EYAS-ROUTER ")), "")
    try:
        found = json.loads(line.removeprefix("EYAS-ROUTER "))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


#: Exit codes of router_ctl.py.
_RUNNING, _SILENT, _NO_BACKEND, _LAST, _NO_ANSWER = 1, 2, 3, 4, 5


class Router:
    """The router on one host, by its control program there. ``shell`` stays the caller's."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.host = shell.host.name

    def status(self) -> dict[str, Any]:
        return self._ask("status", timeout=60)

    def drain(self, name: str, patience_s: float, *, others_s: float = 0) -> dict[str, Any]:
        """No new requests for it; returns when those in flight have ended. Raises ChangeFailed otherwise.

        When they don't end in time it stays drained. While it is the only one that is up it stays in;
        ``others_s``: how long to wait for another.
        """
        words = ("drain", name, f"{patience_s:g}", f"{others_s:g}")
        return self._ask(*words, timeout=patience_s + others_s + 60)

    def restore(self, name: str, patience_s: float = 60) -> dict[str, Any]:
        """Back in once it has answered a completion. When it doesn't, ChangeFailed, and it stays out."""
        return self._ask("restore", name, f"{patience_s:g}", timeout=2 * patience_s + 90)

    def _ask(self, *words: str, timeout: float) -> dict[str, Any]:
        argv = ("python3", "-sEB", f"{HERE}/router_ctl.py", *words)
        got = self.shell.run(argv, timeout=timeout, check=False)
        try:
            told: dict[str, Any] = json.loads(got.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError) as e:
            raise self._no_router(got.stderr, got.tail(3)) from e
        if got.exit:
            raise self._error(got.exit, words, str(told.get("why", "")))
        return told

    def _no_router(self, stderr: str, tail: str) -> EyasError:
        if "No such file" in stderr or "can't open file" in stderr:
            return CheckRefused(
                "there is no router of eyas on this host",
                hint=f"invoke router --host {self.host} --limit GROUP   installs one",
                host=self.host,
            )
        return HostUnreachable(f"the router's program said nothing usable: {tail}", host=self.host)

    def _error(self, code: int, words: tuple[str, ...], why: str) -> EyasError:
        status = f"invoke router status --host {self.host}"
        if code == _NO_BACKEND:
            return NotBehind(why, hint=f"{status}   lists them", host=self.host)
        if code == _LAST:
            hint = "bring another backend up first; without it every request would fail"
            return ChangeFailed(why, hint=hint, host=self.host)
        if code == _RUNNING:
            hint = f"it stays drained: wait, or invoke router restore {words[1]} --host {self.host}"
            return ChangeFailed(f"{words[1]}: {why}", hint=hint, host=self.host)
        if code == _NO_ANSWER:
            hint = f"it stays drained: invoke doctor --host {words[1]}"
            return ChangeFailed(f"{words[1]}: {why}", hint=hint, host=self.host)
        hint = f"on {self.host}: systemctl status {UNIT}"
        return HostUnreachable(f"the router does not answer: {why}", hint=hint, host=self.host)
