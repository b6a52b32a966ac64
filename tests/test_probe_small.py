"""What travels to a host is what the probe needs of pynvml, and all of it."""

import ast
import builtins
import symtable
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pynvml
import pytest

from checks.probe import prune
from checks.probe.pack import ONHOST, payload, pynvml_part
from checks.probe.prune import pruned


@pytest.fixture(scope="module")
def part() -> types.ModuleType:
    module = types.ModuleType("eyas_pruned")
    sys.modules["eyas_pruned"] = module
    try:
        exec(compile(pynvml_part(), "<pynvml>", "exec"), module.__dict__)
    finally:
        del sys.modules["eyas_pruned"]
    return module


def _globals(table: symtable.SymbolTable) -> set[str]:
    mine = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return mine.union(*(_globals(t) for t in table.get_children()))


def test_no_definition_it_keeps_misses_another(part: types.ModuleType) -> None:
    asked = _globals(symtable.symtable(pynvml_part(), "<pynvml>", "exec"))
    missing = {n for n in asked if not hasattr(part, n) and not hasattr(builtins, n)}
    assert {n for n in missing if hasattr(pynvml, n)} == set()


def test_every_name_the_probe_asks_for_came_along(part: types.ModuleType) -> None:
    words = (ONHOST / "nvml.py").read_text().replace('"', " ").split()
    asked = {w.strip("(),") for w in words if w.startswith(("nvmlDevice", "nvmlSystem", "c_nvml"))}
    assert len(asked) > 30
    assert {n for n in asked if hasattr(pynvml, n) and not hasattr(part, n)} == set()
    assert {n for n in asked if n.endswith("Get") or "{" in n} == set(), "a name put together is not found"


def test_its_errors_are_all_there(part: types.ModuleType) -> None:
    classes = {n for n in dir(pynvml) if n.startswith("NVMLError_")}
    assert classes
    assert classes <= set(dir(part))


def test_the_licence_travels_and_little_else() -> None:
    assert "Redistribution and use in source and binary forms" in pynvml_part()
    assert len(payload()) < 60_000


def test_pruning_follows_names_through_definitions_and_decorators() -> None:
    source = (
        "# licence\nimport os\n\nA = 1\nB = A\nC = 2\n\n@deco\ndef f(x=B):\n    return x\n\n\n"
        "def deco(g):\n    return g\n\n\nclass D(E): ...\nclass E: ...\nprint(C)\nP_1 = 0\n"
    )
    assert pruned(source, ["f"], ("P_",)) == (
        "# licence\nimport os\nA = 1\nB = A\nC = 2\n@deco\ndef f(x=B):\n    return x\ndef deco(g):\n"
        "    return g\nprint(C)\nP_1 = 0\n"
    )
    assert "class E" in pruned(source, ["D"])
    assert pruned("", ["f"]) == ""


def test_source_is_parsed_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11's tree builder raises SystemError now and then when two threads are in it."""
    inside, most = [0], [0]

    def parse(source: str) -> ast.Module:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.005)
        inside[0] -= 1
        return ast.Module(body=[], type_ignores=[])

    monkeypatch.setattr(prune, "ast", SimpleNamespace(parse=parse))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: prune.pruned("", ()), range(4))) == [""] * 4
    assert most == [1]
