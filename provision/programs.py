"""The programs and templates that go to the host, from the data folder `systemd/`."""

from pathlib import Path

__all__ = ["FOLDER", "program"]

_HERE = Path(__file__).resolve().parent
#: Beside this package in a checkout; inside it when installed, where it would hide another `systemd`.
FOLDER = installed if (installed := _HERE / "_systemd").is_dir() else _HERE.parent / "systemd"


def program(name: str) -> bytes:
    return (FOLDER / name).read_bytes()
