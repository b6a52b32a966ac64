"""Wheel folders as a package index (PEP 503), for hosts that install "from their own index"."""

import re
from collections.abc import Iterable
from pathlib import Path

from tests.lab.hub.repos import Repos

__all__ = ["Index"]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Index:
    """All wheels of some folders; a folder that gains a wheel is seen at once."""

    def __init__(self, folders: tuple[Path, ...], hashes: Repos) -> None:
        self.folders = folders
        self._hashes = hashes

    def wheels(self) -> dict[str, Path]:
        return {p.name: p for folder in self.folders for p in sorted(folder.glob("*.whl"))}

    def page(self, project: str | None) -> bytes | None:
        """The list of projects, or of one project's files; None when the project is not here."""
        if project is None:
            names = sorted({_normal(w.split("-")[0]) for w in self.wheels()})
            return _html(f'<a href="/simple/{n}/">{n}</a>' for n in names)
        files = {w: p for w, p in self.wheels().items() if _normal(w.split("-")[0]) == _normal(project)}
        links = (f'<a href="/files/{w}#sha256={self._hashes.hashes(p)[1]}">{w}</a>' for w, p in files.items())
        return _html(links) if files else None


def _html(links: Iterable[str]) -> bytes:
    return ("<!DOCTYPE html>\n<html><body>\n" + "<br>\n".join(links) + "\n</body></html>\n").encode()
