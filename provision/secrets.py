"""Secrets are references in files and values only here: read once, handed to the host, masked in all text."""

import os
import stat
from pathlib import Path

from inventory.errors import InventoryError

__all__ = ["Secrets"]


class Secrets:
    """Resolves "env:NAME" and "file:PATH" and remembers the values so that `mask` can hide them."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def read(self, reference: str | None) -> str | None:
        """The value, stripped. Raises InventoryError when it is absent, empty, or a file others may read."""
        if reference is None:
            return None
        kind, _, name = reference.partition(":")
        value = self._from_env(name) if kind == "env" else self._from_file(Path(name).expanduser())
        if not value or any(c.isspace() for c in value):
            raise InventoryError(f"{reference} is empty or holds white space")
        self._values.add(value)
        return value

    @staticmethod
    def _from_env(name: str) -> str:
        if name not in os.environ:
            raise InventoryError(
                f"the environment variable {name} is not set", hint=f"export {name}=... and run again"
            )
        return os.environ[name].strip()

    @staticmethod
    def _from_file(path: Path) -> str:
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as e:
            raise InventoryError(f"cannot read the secret file {path}: {e}") from e
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            raise InventoryError(f"{path} can be read by others", hint=f"chmod 600 {path}")
        return text

    def mask(self, text: str) -> str:
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text
