"""From what a router's host has to what it must have: the changes, none when it is already so."""

import difflib
import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from packaging.version import InvalidVersion, Version

from inventory.errors import ChangeFailed, CheckRefused, RolledBack
from inventory.locks import WheelLock, find_lock
from inventory.model import Host
from inventory.routers import load_routers
from provision import apt, layout
from provision.change import Change
from provision.environment import EnvWant, plan_environment
from provision.programs import program
from provision.router.files import HERE, UNIT, Files, key_file, render
from provision.router.state import HostState
from provision.router.want import RouterWant
from provision.shell import Shell
from provision.unitcheck import check_units
from provision.wheelhouse import wheelhouse_for

__all__ = ["Bring", "plan_router"]

Say = Callable[[str], None]
_STAGED = f"{HERE}.staged"
#: Exit codes of router_apply.sh.
_INVALID, _BUSY, _BACK, _NOT_BACK = 65, 75, 76, 77


class Bring:
    """How a router's program comes to its host: the distribution's package, or wheels by a lock."""

    def __init__(self, want: RouterWant, state: HostState, host: Host, *, push: bool) -> None:
        self.want, self.state, self.host, self.push = want, state, host, push
        self.lock = None if want.kind == "haproxy" else _lock(state)

    @property
    def env(self) -> str:
        return layout.env_dir(self.lock.id) if self.lock else ""

    def changes(self, say: Say) -> list[Change]:
        if self.lock is None:
            return self._package()
        have = set(self.state.envs)
        if self.lock.id[:16] in have:
            return []
        return plan_environment(self._environment(self.lock, say), have, set(self.state.uv), say)

    def _package(self) -> list[Change]:
        row, found = load_routers().haproxy, self.state.package
        if found is None:
            title = f"install {row.package} with apt"
            return [Change(title, partial(_install, name=row.package))]
        _new_enough(found, row.oldest, self.host.name)
        return []

    def _environment(self, lock: WheelLock, say: Say) -> EnvWant:
        import uv  # noqa: PLC0415 - only to find its binary

        glibc = lock.target.glibc or "2.17"
        house = (
            wheelhouse_for(
                lock.id,
                lock.text,
                python_tag=lock.target.python_tag,
                glibc_minor=int(glibc.split(".")[1]),
                say=say,
            )
            if self.push
            else None
        )
        return EnvWant(
            lock_id=lock.id,
            lock_text=lock.text,
            versions=dict(lock.packages),
            imports=("sglang_router",),
            cuda=None,
            python="/usr/bin/python3",
            uv_binary=Path(os.fsdecode(uv.find_uv_bin())),
            uv_version=version("uv"),
            libraries={},
            index_url=self.host.vars.get("eyas_index_url"),
            wheelhouse=house,
        )


def _lock(state: HostState) -> WheelLock:
    python = "".join(state.python.split(".")[:2])
    return find_lock(f"{load_routers().sglang_router.lock}-cp{python}")


def _new_enough(found: str, oldest: str, host: str) -> None:
    try:
        old = Version(apt.upstream(found)) < Version(oldest)
    except InvalidVersion:
        return  # the check of the configuration decides
    if old:
        raise CheckRefused(
            f"HAProxy {found} is older than {oldest}", hint="upgrade it, or --kind sglang-router", host=host
        )


def plan_router(want: RouterWant, state: HostState, bring: Bring, say: Say) -> list[Change]:
    """In the order they are made; the last is the only one that touches what serves."""
    files = render(want, state.drained, env=bring.env)
    changes = [] if state.prepared else [Change("system user and folders", _make_base)]
    changes += bring.changes(say)
    if state.key_mode != "0600":
        key = key_file(want)
        title = "API key as a systemd credential (0600)"
        changes.append(Change(title, lambda s: s.write(files.key_path, key, mode=0o600)))
    return [*changes, *_configuration(want, files, state, say)]


def _make_base(shell: Shell) -> None:
    shell.run(("sh", "-s"), timeout=60, stdin=program("base.sh"))


def _install(shell: Shell, name: str) -> None:
    """The package starts a service of its own with nothing in it; ours replaces that."""
    wrong = apt.refresh(shell)
    try:
        apt.apt_get(shell, "install", "--no-install-recommends", name, timeout=900)
    except ChangeFailed as e:
        raise ChangeFailed(f"{e.message}\n{wrong}".rstrip(), hint=e.hint, host=e.host) from e
    shell.run(("systemctl", "disable", "--now", "--quiet", f"{name}.service"), timeout=60, check=False)


def _configuration(want: RouterWant, files: Files, state: HostState, say: Say) -> list[Change]:
    differ = sorted(n for n, text in files.folder.items() if state.files.get(n) != text)
    surplus = sorted(n for n, text in state.files.items() if text is not None and n not in files.folder)
    new_unit = state.unit_text != files.unit
    if not (differ or surplus or new_unit or state.why_not_running):
        return []
    count = f"{len(want.backends)} backends on port {want.port}"
    if state.unit_text is None:
        title = f"{want.kind}: {count}, checked, started"
    elif new_unit or state.why_not_running:
        title = f"{want.kind}: {count}, checked, restarted ({state.why_not_running or 'its unit changes'})"
    else:
        title = f"{want.kind}: {count}, checked, reloaded ({', '.join(differ + surplus)})"
    return [Change(title, lambda s: _apply(s, want, files, say), diff=_diff(files, state), disruptive=True)]


def _diff(files: Files, state: HostState) -> str:
    """Of what people read: the configuration and the unit."""
    pairs = [(files.config, state.files.get(files.config), files.folder[files.config])]
    pairs.append((UNIT, state.unit_text, files.unit))
    lines: list[str] = []
    for name, old, new in pairs:
        words = (old or "").splitlines(), new.splitlines()
        lines += difflib.unified_diff(*words, f"host/{name}", f"wanted/{name}", lineterm="", n=2)
    return "\n".join(lines)


def _apply(shell: Shell, want: RouterWant, files: Files, say: Say) -> None:
    """The host itself checks, swaps, reloads and goes back: a lost connection leaves nothing half-way."""
    shell.run(("rm", "-rf", "--", _STAGED), timeout=20)
    for name, text in {**files.folder, UNIT: files.unit}.items():
        shell.write(f"{_STAGED}/{name}", text.encode())
    binary = load_routers().haproxy.binary
    check_units(shell, UNIT.removesuffix(".service"), (f"{_STAGED}/{UNIT}",), say)
    argv = ("sh", "-s", "--", _STAGED, HERE, want.kind, binary, files.key_path)
    got = shell.run(argv, timeout=400, stdin=program("router_apply.sh"), check=False)
    if got.ok:
        return
    host, last = shell.host.name, got.tail(12)
    if got.exit == _INVALID:
        raise ChangeFailed(f"HAProxy does not accept the configuration; nothing was touched:\n{last}",
                           hint="invoke router --check --diff shows it", host=host)  # fmt: skip
    if got.exit == _BUSY:
        raise ChangeFailed(last, hint="run the same command again", host=host)
    if got.exit == _BACK:
        raise RolledBack(f"the router did not run; the former configuration runs again\n{last}", host=host,
                         hint=f"on {host}: journalctl -u {UNIT} -n 50")  # fmt: skip
    back = "\nand the former configuration does not run either" if got.exit == _NOT_BACK else ""
    raise ChangeFailed(f"the router does not run{back}\n{last}", host=host,
                       hint=f"on {host}: journalctl -u {UNIT} -n 50")  # fmt: skip
