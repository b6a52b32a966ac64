"""A Change is one visible step: a title, what it would do (for --check and --diff), and the doing."""

from collections.abc import Callable
from dataclasses import dataclass

from provision.shell import Shell

__all__ = ["Change"]


@dataclass(frozen=True)
class Change:
    title: str
    apply: Callable[[Shell], None]
    diff: str = ""
    #: Changes that disturb what is served (a restart, a switch) are applied last and named to the operator.
    disruptive: bool = False
