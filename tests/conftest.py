"""For all tests: properties are tried on few examples, and judged by what they find, never by the clock."""

import gc
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("eyas", max_examples=20, deadline=None)
settings.load_profile("eyas")

# As `./eyas` does: without compiled files each worker compiles every library and every test again, which
# takes longer than the tests.
if sys.dont_write_bytecode and not sys.pycache_prefix:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, "pycache"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Modules and collected tests stay: going through them for garbage again and again is a tenth of the time.
gc.set_threshold(50_000, 20, 100)

_FILES_MARKS = re.compile(r"^pytestmark = (.+)$", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file all of whose tests the choice by marks leaves out is not imported: labs take a second to."""
    words = config.option.markexpr.split(" and ")
    left_out = {word.removeprefix("not ") for word in words if re.fullmatch(r"not \w+", word)}
    if not left_out or re.search(r"[()]| or ", config.option.markexpr) or collection_path.suffix != ".py":
        return None
    marks = _FILES_MARKS.findall(collection_path.read_text(encoding="utf-8"))
    return True if left_out & set(re.findall(r"mark\.(\w+)", " ".join(marks))) else None


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A choice by marks that doesn't speak of long tests doesn't mean them."""
    if config.option.markexpr and "long" not in config.option.markexpr:
        long = [item for item in items if "long" in item.keywords]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if "long" not in item.keywords]
