"""Make a lab host's Python believe something of the host: its C library, its own version, its clock.

No namespace holds these, so they are changed where every program on the host asks for them: at the start
of its Python (``sitecustomize``, which ``python3 -I`` reads too). ``date`` and systemd still know better.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.hosts import LabHost

__all__ = ["clock", "glibc", "honest", "python"]

_FIND = "import sys; print(f'/usr/lib/python{sys.version_info[0]}.{sys.version_info[1]}/sitecustomize.py')"


def glibc(host: "LabHost", value: str) -> None:
    _pose(host, f"import os\nos.confstr = lambda name: 'glibc {value}'\n")


def python(host: "LabHost", value: str) -> None:
    numbers = value.replace(".", ", ")
    _pose(
        host,
        "import collections, sys\n"
        "names = 'major minor micro releaselevel serial'\n"
        f"sys.version_info = collections.namedtuple('version_info', names)({numbers}, 'final', 0)\n",
    )


def clock(host: "LabHost", value: str) -> None:
    _pose(host, f"import time\nright = time.time\ntime.time = lambda: right() + {float(value)}\n")


def honest(host: "LabHost", _: str = "") -> None:
    """Back to what Debian has there: a link into /etc."""
    path = _path(host)
    host.run(["sh", "-ec", 'rm -f "$1"; [ ! -e "$1.real" ] || mv "$1.real" "$1"', "sh", path])


def _pose(host: "LabHost", text: str) -> None:
    path = _path(host)
    script = '[ -e "$1.real" ] || [ ! -e "$1" ] || mv "$1" "$1.real"; cat > "$1"'
    host.run(["sh", "-ec", script, "sh", path], stdin=text)


def _path(host: "LabHost") -> str:
    return host.run(["/usr/bin/python3", "-S", "-c", _FIND]).stdout.strip()
