"""Whether systemd takes a unit and how exposed it is, asked on the host before anything points at it."""

from collections.abc import Callable, Sequence

from inventory.errors import ChangeFailed
from provision.shell import Shell

__all__ = ["EXPOSURE_LIMIT", "check_units"]

#: systemd-analyze's exposure level in tenths; above it the unit is not installed.
EXPOSURE_LIMIT = 20


def check_units(shell: Shell, name: str, units: Sequence[str], say: Callable[[str], None]) -> None:
    """``units``: paths on the host, the service first; ``name``: what systemd's complaints about them hold.

    Raises ChangeFailed when systemd complains, or when the service is more exposed than EXPOSURE_LIMIT.
    """
    checked = shell.run(("systemd-analyze", "verify", "--man=no", *units), timeout=60, check=False)
    complaints = [line for line in checked.stderr.splitlines() if name in line]
    if not checked.ok or complaints:
        raise ChangeFailed(
            "systemd does not accept the unit:\n" + "\n".join(complaints or [checked.tail()]),
            host=shell.host.name,
        )
    level = shell.run(
        (
            "systemd-analyze",
            "security",
            "--no-pager",
            "--offline=true",
            f"--threshold={EXPOSURE_LIMIT}",
            units[0],
        ),
        timeout=60,
        check=False,
    )
    overall = [line for line in level.stdout.splitlines() if "Overall exposure" in line]
    if not level.ok and overall:
        raise ChangeFailed(f"the unit is too exposed: {overall[0].strip()}", host=shell.host.name)
    if overall:
        say(overall[0].strip(" →"))
