"""The programs and templates that go to the host, from the data folder `systemd/`."""

from pathlib import Path

__all__ = ["FOLDER", "program"]

FOLDER = Path(__file__).resolve().parent.parent / "systemd"


def program(name: str) -> bytes:
    return (FOLDER / name).read_bytes()
