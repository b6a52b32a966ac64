"""For all tests: properties are tried on few examples, and judged by what they find, never by the clock."""

import os
import sys

import pytest
from hypothesis import settings

settings.register_profile("eyas", max_examples=30, deadline=None)
settings.load_profile("eyas")

# As `./eyas` does: without compiled files each worker compiles every library and every test again, which
# takes longer than the tests.
if sys.dont_write_bytecode and not sys.pycache_prefix:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(sys.prefix, "pycache")  # noqa: PTH118 - a str
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A choice by marks that doesn't speak of long tests doesn't mean them."""
    if config.option.markexpr and "long" not in config.option.markexpr:
        long = [item for item in items if "long" in item.keywords]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if "long" not in item.keywords]
