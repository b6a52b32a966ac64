"""Folders as repositories: file hashes, commits and branches, computed from what lies on disk."""

import hashlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Entry", "Repos", "Snapshot"]

LFS_SUFFIXES = {".safetensors", ".bin", ".gguf", ".pt", ".pth", ".msgpack", ".onnx"}
LFS_BYTES = 10 * 2**20
_BLOCK = 2**20


@dataclass(frozen=True)
class Entry:
    """One file: path inside the repository, where it lies, its size and its two hashes."""

    path: str
    file: Path
    size: int
    git_sha1: str
    sha256: str

    @property
    def lfs(self) -> bool:
        return self.file.suffix in LFS_SUFFIXES or self.size > LFS_BYTES

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_sha1

    @property
    def pointer(self) -> bytes:
        """The small text that git holds in place of an LFS file."""
        spec = "version https://git-lfs.github.com/spec/v1"
        return f"{spec}\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    def sibling(self, *, blobs: bool) -> dict[str, Any]:
        """As the repo-info API lists it."""
        if not blobs:
            return {"rfilename": self.path}
        known = {"rfilename": self.path, "size": self.size, "blobId": self._blob_id}
        lfs = {"sha256": self.sha256, "size": self.size, "pointerSize": len(self.pointer)}
        return {**known, "lfs": lfs} if self.lfs else known

    def leaf(self) -> dict[str, Any]:
        """As the tree API lists it: here the LFS hash is called ``oid``."""
        known = {"type": "file", "path": self.path, "size": self.size, "oid": self._blob_id}
        lfs = {"oid": self.sha256, "size": self.size, "pointerSize": len(self.pointer)}
        return {**known, "lfs": lfs} if self.lfs else known

    @property
    def _blob_id(self) -> str:
        return _git_blob(self.pointer) if self.lfs else self.git_sha1


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit."""

    id: str
    commit: str
    entries: dict[str, Entry]

    def folders(self) -> list[str]:
        """Every folder of the tree, without the root."""
        return sorted({p.as_posix() for path in self.entries for p in Path(path).parents} - {"."})


class Repos:
    """All repositories below one folder; content that changes on disk is a new commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._hashes: dict[tuple[Path, int, int], tuple[str, str]] = {}
        self._lock = threading.Lock()

    def branches(self, repo: str) -> dict[str, Path]:
        """Branch name to folder: ``owner/name`` is main, ``owner/name@dev`` is dev. Empty: no such repo."""
        owner, _, name = repo.partition("/")
        if not name or {owner, name} & {"", ".", ".."} or "/" in name or "@" in repo:
            return {}
        main = self.root / owner / name
        others = {p.name.partition("@")[2]: p for p in (self.root / owner).glob(f"{name}@*") if p.is_dir()}
        return {"main": main, **others} if main.is_dir() else {}

    def snapshot(self, repo: str, revision: str) -> Snapshot | None:
        """The repository at a branch or at a commit that a branch points to; None when there is none."""
        branches = self.branches(repo)
        if revision in branches:
            return self._read(repo, branches[revision])
        for folder in branches.values():
            if (found := self._read(repo, folder)).commit == revision:
                return found
        return None

    def _read(self, repo: str, folder: Path) -> Snapshot:
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        entries = [self._entry(folder, p) for p in files]
        listing = "".join(f"{e.path}\0{e.sha256}\n" for e in entries)
        commit = hashlib.sha1(f"{repo}\n{listing}".encode()).hexdigest()
        return Snapshot(repo, commit, {e.path: e for e in entries})

    def _entry(self, folder: Path, file: Path) -> Entry:
        stat = file.stat()
        sha1, sha256 = self.hashes(file)
        return Entry(file.relative_to(folder).as_posix(), file, stat.st_size, sha1, sha256)

    def hashes(self, file: Path) -> tuple[str, str]:
        """(git blob sha1, sha256), kept for as long as size and modification time stay."""
        stat = file.stat()
        key = (file, stat.st_size, stat.st_mtime_ns)
        with self._lock:
            if key not in self._hashes:
                self._hashes[key] = _hash(file, stat.st_size)
            return self._hashes[key]


def _hash(file: Path, size: int) -> tuple[str, str]:
    git, plain = hashlib.sha1(b"blob %d\0" % size), hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(_BLOCK):
            git.update(block)
            plain.update(block)
    return git.hexdigest(), plain.hexdigest()


def _git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()
