"""The switch: make a release the served one, and put the former back when it does not serve."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inventory.errors import ChangeFailed, EyasError, RolledBack
from provision import layout
from provision.audit import note_switch
from provision.change import Change
from provision.explain import Explained
from provision.programs import program
from provision.release import ReleaseWant
from provision.shell import Result, Shell

__all__ = [
    "FAILED_LINE",
    "ServiceState",
    "activate",
    "plan_switch",
    "prove",
    "settle",
    "switch",
    "switching",
]

#: A failed start's journal -> one sentence and findings.
Explain = Callable[[str], Explained]
OnLine = Callable[[str], None]
#: activate.sh says so as soon as the new release has failed, before it puts the former one back.
FAILED_LINE = "eyas-failed "
_BACK_BUT_ALONE = "the former release is back in place and serves as soon as the other hosts are there"
#: Longer than any start of an engine that takes a minute to give up.
_SETTLE_S = 3600
#: activate.sh holds it.
_SWITCH = f"{layout.LOCK}/switch"


def _silent(_: str) -> Explained:
    return "", ()


@dataclass(frozen=True)
class ServiceState:
    """What the host says now: release pointed at, unit contents equal to it, active, enabled, timer on.

    drop_ins: somebody changed the unit with `systemctl edit` or set-property; they are set aside.
    """

    current: str | None
    units_equal: bool
    active: bool
    enabled: bool
    timer_active: bool
    drop_ins: bool = False

    @property
    def settled(self) -> bool:
        return self.units_equal and not self.drop_ins and self.active and self.enabled and self.timer_active


def plan_switch(want: ReleaseWant, state: ServiceState, explain: Explain) -> list[Change]:
    if state.current == want.id and state.settled:
        return []
    if state.current == want.id:
        title = f"restart {layout.unit_name(want.deployment)} ({_why(state)})"
    else:
        title = f"serve release {want.id} (now: {state.current or 'nothing'})"
    return [Change(title, lambda shell: switch(shell, want, state.current, explain), disruptive=True)]


def _why(s: ServiceState) -> str:
    reasons = {
        "its unit files were changed by hand": not s.units_equal,
        "drop-ins of others, which go to /var/lib/eyas/set-aside": s.drop_ins,
        "not active": not s.active,
        "not enabled": not s.enabled,
        "health timer off": not s.timer_active,
    }
    return ", ".join(text for text, true in reasons.items() if true)


#: activate.sh: the new release failed and the former serves again, or does not; or nothing was touched;
#: or the former one is back and waits for other hosts of its group.
_RESTORED, _NOT_RESTORED, _UNTOUCHED, _WAITS = 76, 77, 78, 79


def activate(
    shell: Shell,
    deployment: str,
    release: str,
    timeout_start_s: float,
    *,
    former: str | None = None,
    explain: Explain = _silent,
    bench: bool = False,
    on_line: OnLine | None = None,
) -> None:
    """Serve this release, or raise ChangeFailed. With ``former`` the host itself puts that one back then.

    ``bench``: for a while only; the way back to what was before the bench stays.
    """
    back = layout.release_dir(former) if former and former != release else ""
    reason = "bench" if bench else ""
    got = _activate(shell, deployment, release, back, timeout_start_s, reason, on_line)
    if not got.ok:
        why, findings = _failure(shell, deployment, got, explain)
        raise ChangeFailed(why, host=shell.host.name, findings=findings)


def _activate(
    shell: Shell,
    deployment: str,
    release: str,
    former: str,
    timeout_start_s: float,
    why: str = "",
    on_line: OnLine | None = None,
) -> Result:
    where = layout.release_dir(release), layout.current_link(deployment), layout.unit_name(deployment)
    wait = (2 if former else 1) * (timeout_start_s + 120)
    note_switch(shell, deployment, release, must=bool(former), bench=why == "bench")
    return shell.run(
        ("sh", "-s", "--", *where, former, why),
        timeout=wait,
        stdin=program("activate.sh"),
        check=False,
        on_line=on_line,
    )


def _failure(shell: Shell, deployment: str, got: Result, explain: Explain) -> Explained:
    """Why a start failed: one sentence when somebody can tell, else what the engine said last."""
    if got.exit == _UNTOUCHED:
        return f"nothing was touched: the switch could not be written to the host's disk\n{got.tail(3)}", ()
    marked = [line.split() for line in got.stdout.splitlines() if line.startswith(FAILED_LINE)]
    text = journal(shell, deployment, invocation=marked[-1][1] if marked and len(marked[-1]) > 1 else "")
    said = [line for line in text.splitlines() if line.strip() and not line.startswith("eyas: starting ")]
    sentence, findings = explain(text)
    return sentence or "\n".join(said[-6:]) or got.tail(), findings


def switch(
    shell: Shell, want: ReleaseWant, current: str | None, explain: Explain, on_line: OnLine | None = None
) -> None:
    """Raises RolledBack or ChangeFailed; the host itself puts the former release back (see activate.sh)."""
    former = layout.release_dir(current) if current and current != want.id else "noted" if current else ""
    got = _activate(shell, want.deployment, want.id, former, want.timeout_start_s, on_line=on_line)
    if got.ok:
        return
    why, findings = _failure(shell, want.deployment, got, explain)
    message = f"release {want.id} did not become ready: {why}"
    hint = f"invoke doctor --host {shell.host.name}"
    told: dict[str, Any] = {"hint": hint, "host": shell.host.name, "findings": findings}
    if got.exit == _RESTORED:
        raise RolledBack(f"{message}\nthe former release serves again", **told)
    if got.exit == _WAITS:
        raise RolledBack(f"{message}\n{_BACK_BUT_ALONE}", **told)
    if got.exit == _NOT_RESTORED:
        raise ChangeFailed(f"{message}\nand the former release did not come back either", **told)
    if current is None:
        _taken_away(shell, want.deployment)
    raise ChangeFailed(message, **told)


def switching(shell: Shell) -> bool:
    """Whether a switch goes on here: a killed operator leaves one that the host ends by itself."""
    return not shell.run(("flock", "-n", _SWITCH, "true"), timeout=20, check=False).ok


def settle(shell: Shell, say: Callable[[str], None]) -> None:
    """Wait until no switch goes on here."""
    if switching(shell):
        say("an earlier switch still goes on here; waiting for its end")
        shell.run(("flock", "-w", str(_SETTLE_S), _SWITCH, "true"), timeout=_SETTLE_S + 10)


def put_back(shell: Shell, deployment: str, former: str | None, timeout_s: float, message: str) -> None:
    """Always raises: RolledBack when the former release serves again, ChangeFailed when there is none."""
    hint = f"invoke doctor --host {shell.host.name}"
    if former is None:
        _taken_away(shell, deployment)
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


def _taken_away(shell: Shell, deployment: str) -> None:
    """Nothing served here before: nothing is left running or pointed at."""
    unit = layout.unit_name(deployment)
    off = ("systemctl", "disable", "--now", "--quiet", f"{unit}-health.timer", f"{unit}.service")
    shell.run(off, timeout=120, check=False)
    shell.run(("rm", "-f", "--", layout.current_link(deployment)), timeout=20)


def journal(shell: Shell, deployment: str, lines: int = 4000, *, invocation: str = "") -> str:
    """What the service said since the boot, or in one start of it (systemd's invocation id)."""
    unit = ("-u", layout.unit_name(deployment))
    argv = (
        "journalctl",
        *((f"_SYSTEMD_INVOCATION_ID={invocation}",) if invocation else unit),
        "-b",
        "-n",
        str(lines),
        "-o",
        "short-iso",
        "--no-pager",
    )
    return shell.run(argv, timeout=30, check=False).stdout


def prove(
    shell: Shell, deployment: str, *, max_tokens: int = 64, rounds: int = 3, timeout: float = 600
) -> dict[str, Any]:
    """Run proof.py of the served release on the host; raises ChangeFailed when it gets no answer.

    ``rounds``: how often each prompt is asked, fewer where a round takes seconds.
    """
    program_path = f"{layout.current_link(deployment)}/proof.py"
    env = ("env", f"EYAS_CREDENTIALS={layout.credentials_dir(deployment)}")
    argv = (*env, "python3", "-sEB", program_path, str(max_tokens), str(rounds))
    got = shell.run(argv, timeout=timeout, check=False)
    try:
        result: dict[str, Any] = json.loads(got.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError) as e:
        raise ChangeFailed(f"the proof printed nothing usable: {got.tail(3)}", host=shell.host.name) from e
    if "error" in result:
        raise ChangeFailed(f"the endpoint did not pass the proof: {result['error']}", host=shell.host.name)
    return result
