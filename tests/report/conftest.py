"""`page`: one browser for the module's tests, skipped with the reason where none can be had."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.report import assemble, collect, render
from tests.report import making
from tests.report.chromium import PACKAGE, Browser, browser, find_chromium


@pytest.fixture(scope="session")
def page() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip(f"no Chromium on this machine: apt-get install {PACKAGE}, or ./eyas test --yes")
    with browser(program) as opened:
        yield opened


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every section filled, and an attack in every text of one finding."""
    folder = making.fill(tmp_path_factory.mktemp("report") / "documents")
    making.save(folder / "hostile.json", making.hostile())
    tree = assemble(collect(folder), made_at="2026-12-01T00:00:00Z", version="0", scope="all")
    path = folder.parent / "report.html"
    path.write_text(render(tree), encoding="utf-8")
    return path
