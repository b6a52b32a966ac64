"""Where the bytes come from: one small protocol, a folder here, HTTP in `hub` and `mirror`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from checks.modelmeta.errors import NotAModel
from checks.modelmeta.meta import FileInfo

__all__ = ["FolderSource", "Source"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


class Source(Protocol):
    """A model's files. ``read`` gives None for a file that is not there and never more than ``limit``."""

    label: str
    commit: str | None

    def files(self) -> Mapping[str, FileInfo]: ...
    def read(self, name: str, limit: int) -> bytes | None: ...
    def read_range(self, name: str, start: int, length: int) -> bytes: ...
    def close(self) -> None: ...


class FolderSource:
    """A folder on the operator's machine; a hub cache's snapshot knows its own commit."""

    def __init__(self, path: str) -> None:
        self.label = path
        self._root = Path(path).expanduser()
        if not self._root.is_dir():
            what = "is a file, not a folder" if self._root.is_file() else "does not exist"
            raise NotAModel(
                f"{path} {what}", hint="give the folder that holds config.json, or a hub repository"
            )
        self.commit = self._root.name if _COMMIT.fullmatch(self._root.name) else None

    def close(self) -> None:
        """Nothing is held open."""

    def files(self) -> Mapping[str, FileInfo]:
        """Every file below the folder, by its path inside it, without hidden ones (.git, .cache)."""
        try:
            found = {
                str(p.relative_to(self._root)): FileInfo(p.stat().st_size)
                for p in sorted(self._root.rglob("*"))
                if p.is_file() and not any(part.startswith(".") for part in p.relative_to(self._root).parts)
            }
        except OSError as e:
            raise self._unreadable(e) from e
        if "config.json" not in found:
            raise NotAModel(f"{self.label} is not a model folder: it has no config.json", hint=self._hint())
        return found

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            with (self._root / name).open("rb") as f:
                return f.read(limit)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise self._unreadable(e) from e

    def read_range(self, name: str, start: int, length: int) -> bytes:
        try:
            with (self._root / name).open("rb") as f:
                f.seek(start)
                return f.read(length)
        except OSError as e:
            raise self._unreadable(e) from e

    def _unreadable(self, error: OSError) -> NotAModel:
        return NotAModel(f"{self.label} cannot be read: {error}", hint="check owner and mode of the files")

    def _hint(self) -> str:
        snapshots = sorted(self._root.glob("snapshots/*/config.json"))
        if snapshots:
            return f"this is a hub cache entry; give its snapshot: {snapshots[-1].parent}"
        below = sorted(self._root.glob("*/config.json"))
        return f"did you mean {below[0].parent}?" if below else "give the folder that holds config.json"
