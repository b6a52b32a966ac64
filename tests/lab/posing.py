"""Make a lab host's Python believe something of the host: its C library, its own version, its clock.

No namespace holds these, so they are changed where every program on the host asks for them: in the one file
of the standard library that each start of its Python reads, also ``python3 -I -S``. ``date`` and systemd
still know better.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.hosts import LabHost

__all__ = ["clock", "glibc", "honest", "python"]

_FIND = "import encodings; print(encodings.__file__)"
_POSE = '[ -e "$1.real" ] || cp -p "$1" "$1.real"; { cat "$1.real"; cat; } >"$1.new"; mv "$1.new" "$1"'


def glibc(host: "LabHost", value: str) -> None:
    _pose(host, f"import os\nos.confstr = lambda name: 'glibc {value}'\n")


def python(host: "LabHost", value: str) -> None:
    major, minor, micro = value.split(".")
    _pose(
        host,
        f"import sys\nsys.version_info = type('Posing', (tuple,), dict(major={major}, minor={minor}))"
        f"(({major}, {minor}, {micro}, 'final', 0))\n",
    )


def clock(host: "LabHost", value: str) -> None:
    _pose(host, f"import time\nright = time.time\ntime.time = lambda: right() + {float(value)}\n")


def honest(host: "LabHost", _: str = "") -> None:
    host.run(["sh", "-ec", '[ ! -e "$1.real" ] || mv "$1.real" "$1"', "sh", _path(host)])


def _pose(host: "LabHost", text: str) -> None:
    host.run(["sh", "-ec", _POSE, "sh", _path(host)], stdin=text)


def _path(host: "LabHost") -> str:
    return host.run(["/usr/bin/python3", "-I", "-S", "-c", _FIND]).stdout.strip()
