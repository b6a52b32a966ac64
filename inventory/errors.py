"""Errors an operator meets. The class says who must act and with which exit code the command ends.

Exit codes: 0 done/clean, 1 a bug in eyas, 2 usage or inventory, 3 a host could not be reached or looked
at, 4 a check refused or found errors, 5 a change failed, 6 failed and rolled back, 8 changes pending.
"""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ChangeFailed",
    "CheckRefused",
    "EyasError",
    "HostUnreachable",
    "InventoryError",
    "LockHeld",
    "RolledBack",
    "UsageError",
]


class EyasError(Exception):
    """What was tried, where, and (``hint``) the one next command or edit that gets the operator on.

    ``cause``: the doctor's name for it where it is known for sure ("hf-unauthorized"); ``findings``: what the
    doctor named in the journal of a start that failed.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, hint: str = "", host: str = "", cause: str = "", findings: Sequence[Any] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.host = host
        self.cause = cause
        self.findings = tuple(findings)

    def __str__(self) -> str:
        where = f"{self.host}: " if self.host else ""
        return f"{where}{self.message}" + (f"\n  next: {self.hint}" if self.hint else "")


class UsageError(EyasError):
    """The command line is wrong; nothing was touched."""

    exit_code = 2


class InventoryError(EyasError):
    """A user-edited file is wrong: the message names file, line and the nearest valid key."""

    exit_code = 2


class HostUnreachable(EyasError):
    """The host could not be reached or looked at; nothing is known about it."""

    exit_code = 3


class CheckRefused(EyasError):
    """A precondition or check says no; nothing was changed."""

    exit_code = 4


class ChangeFailed(EyasError):
    """A change on a host failed; what was served before is still served."""

    exit_code = 5


class LockHeld(ChangeFailed):
    """Another operator works on this host or fleet; the message says who and since when."""


class RolledBack(EyasError):
    """A change failed and the former release serves again, proven by the same gate."""

    exit_code = 6
