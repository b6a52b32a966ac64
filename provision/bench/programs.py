"""The programs that a bench and the review need on a host, in one folder that is replaced as a whole."""

from functools import cache
from hashlib import sha256
from pathlib import Path

import pynvml

from provision import layout
from provision.programs import program
from provision.shell import Shell

__all__ = ["FILES", "bring"]

FILES = (
    "activate.sh",
    "bench.py",
    "endpoint.py",
    "hold_lock.py",
    "proof.py",
    "put_back.py",
    "review.py",
    "served.py",
)
_MARK = "complete"


@cache
def _content() -> dict[str, bytes]:
    """NVML's bindings are one pure-Python file: with it a bare host tells memory and power."""
    return {**{n: program(n) for n in FILES}, "pynvml.py": Path(pynvml.__file__).read_bytes()}


def bring(shell: Shell) -> str:
    """Make sure that they are there, as they are here; the folder."""
    digest = sha256(b"".join(n.encode() + b"\0" + data for n, data in sorted(_content().items())))
    mark = digest.hexdigest().encode()
    if shell.read(f"{layout.BENCH}/{_MARK}") != mark:
        shell.run(("rm", "-f", "--", f"{layout.BENCH}/{_MARK}"), timeout=20)
        for name, data in _content().items():
            shell.write(f"{layout.BENCH}/{name}", data)
        shell.write(f"{layout.BENCH}/{_MARK}", mark)
    return layout.BENCH
