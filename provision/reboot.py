"""Reboot a host and wait until it is back: another boot id, not only another connection."""

import contextlib
import time

from inventory.errors import ChangeFailed, HostUnreachable
from provision.shell import Shell

__all__ = ["BOOT_ID", "reboot"]

BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: Servers with much memory and many cards take their time before the kernel starts.
DEADLINE_S = 1200.0
_STEP_S = 1.0


def reboot(shell: Shell, *, deadline: float = DEADLINE_S, step: float = _STEP_S) -> None:
    """Return when the host answers on a new boot. HostUnreachable when it does not come back."""
    before = shell.read(BOOT_ID)
    with contextlib.suppress(HostUnreachable):
        got = shell.run(("systemctl", "reboot"), timeout=60, check=False)
        if not got.ok:
            raise ChangeFailed(
                f"systemctl reboot: exit {got.exit}\n{got.tail(3)}",
                hint="reboot it by hand, then run the same command again",
                host=shell.host.name,
            )
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if _boot_id(shell, end) not in {None, before}:
            return
        time.sleep(step)
    raise HostUnreachable(
        f"still not back from its reboot after {deadline:.0f} s",
        hint="look at its console; when it is up, run the same command again",
        host=shell.host.name,
    )


def _boot_id(shell: Shell, end: float) -> bytes | None:
    """None while nobody answers. The old boot answers until it is down, so the connection is made anew."""
    try:
        shell.reconnect(deadline=max(1.0, end - time.monotonic()))
        return shell.read(BOOT_ID)
    except (HostUnreachable, ChangeFailed):
        return None
