"""The switch: make a release the served one, and put the former back when it does not serve."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inventory.errors import ChangeFailed, EyasError, RolledBack
from provision import layout
from provision.change import Change
from provision.programs import program
from provision.release import ReleaseWant
from provision.shell import Shell

__all__ = ["ServiceState", "activate", "plan_switch", "prove"]

Explain = Callable[[str], str]


@dataclass(frozen=True)
class ServiceState:
    """What the host says now: release pointed at, unit contents equal to it, active, enabled, timer on."""

    current: str | None
    units_equal: bool
    active: bool
    enabled: bool
    timer_active: bool

    @property
    def settled(self) -> bool:
        return self.units_equal and self.active and self.enabled and self.timer_active


def plan_switch(want: ReleaseWant, state: ServiceState, explain: Explain) -> list[Change]:
    if state.current == want.id and state.settled:
        return []
    if state.current == want.id:
        title = f"restart {layout.unit_name(want.deployment)} ({_why(state)})"
    else:
        title = f"serve release {want.id} (now: {state.current or 'nothing'})"
    former = state.current if state.current != want.id else None
    return [Change(title, lambda shell: _switch(shell, want, former, explain), disruptive=True)]


def _why(s: ServiceState) -> str:
    reasons = {
        "its unit files were changed by hand": not s.units_equal,
        "not active": not s.active,
        "not enabled": not s.enabled,
        "health timer off": not s.timer_active,
    }
    return ", ".join(text for text, true in reasons.items() if true)


def activate(shell: Shell, deployment: str, release: str, timeout_start_s: float) -> None:
    argv = (
        "sh",
        "-s",
        "--",
        layout.release_dir(release),
        layout.current_link(deployment),
        layout.unit_name(deployment),
    )
    shell.run(argv, timeout=timeout_start_s + 120, stdin=program("activate.sh"))


def _switch(shell: Shell, want: ReleaseWant, former: str | None, explain: Explain) -> None:
    try:
        activate(shell, want.deployment, want.id, want.timeout_start_s)
    except ChangeFailed as e:
        cause = explain(journal(shell, want.deployment))
        message = f"release {want.id} did not become ready: {cause or e.message}"
        put_back(shell, want.deployment, former, want.timeout_start_s, message)


def put_back(shell: Shell, deployment: str, former: str | None, timeout_s: float, message: str) -> None:
    """Always raises: RolledBack when the former release serves again, ChangeFailed when there is none."""
    hint = f"invoke doctor --host {shell.host.name}"
    unit = layout.unit_name(deployment)
    if former is None:
        shell.run(
            ("systemctl", "disable", "--now", "--quiet", f"{unit}-health.timer", f"{unit}.service"),
            timeout=120,
            check=False,
        )
        shell.run(("rm", "-f", "--", layout.current_link(deployment)), timeout=20)
        raise ChangeFailed(message, hint=hint, host=shell.host.name)
    try:
        activate(shell, deployment, former, timeout_s)
    except EyasError as e:
        raise ChangeFailed(
            f"{message}\nand the former release {former} did not come back: {e.message}",
            hint=hint,
            host=shell.host.name,
        ) from e
    raise RolledBack(f"{message}\nthe former release {former} serves again", hint=hint, host=shell.host.name)


def journal(shell: Shell, deployment: str, lines: int = 4000) -> str:
    argv = (
        "journalctl",
        "-u",
        layout.unit_name(deployment),
        "-b",
        "-n",
        str(lines),
        "-o",
        "short-iso",
        "--no-pager",
    )
    return shell.run(argv, timeout=30, check=False).stdout


def prove(shell: Shell, deployment: str, *, max_tokens: int = 64, timeout: float = 600) -> dict[str, Any]:
    """Run proof.py of the served release on the host; raises ChangeFailed when it gets no answer."""
    program_path = f"{layout.current_link(deployment)}/proof.py"
    env = ("env", f"EYAS_CREDENTIALS={layout.credentials_dir(deployment)}")
    got = shell.run((*env, "python3", "-sE", program_path, str(max_tokens)), timeout=timeout, check=False)
    try:
        result: dict[str, Any] = json.loads(got.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError) as e:
        raise ChangeFailed(f"the proof printed nothing usable: {got.tail(3)}", host=shell.host.name) from e
    if "error" in result:
        raise ChangeFailed(f"the endpoint did not pass the proof: {result['error']}", host=shell.host.name)
    return result
