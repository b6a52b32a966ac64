"""Arrows point one way, nothing connects at import, and SSH stays in two modules."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "inventory": {"inventory"},
    "checks": {"inventory", "checks"},
    "provision": {"inventory", "checks", "provision"},
}
OURS = {"inventory", "checks", "provision", "surface", "tasks", "tests"}
SSH = {"fabric", "invoke", "paramiko"}
SSH_ROOMS = {Path("provision/ssh"), Path("provision/hostkeys.py")}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement in a module, however deep; what is inside expressions imports nothing."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, name, ()):
            yield child
            yield from statements(child)


#: Whatever may be an import, with more than is one; parsing every file takes ten times as long.
MAYBE = re.compile(r"(?:^|[;:])[ \t]*(?:import|from)[ \t]+(.+)", re.MULTILINE)


@functools.cache
def imports(path: Path, wanted: frozenset[str]) -> set[str]:
    """Those of the wanted packages that a module imports."""
    text = path.read_text()
    found: set[str] = set()
    if wanted.isdisjoint(re.findall(r"\w+", " ".join(MAYBE.findall(text)))):
        return found
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found & wanted


def test_arrows_point_one_way() -> None:
    bad = [
        f"{path.relative_to(ROOT)} imports {name}"
        for layer, allowed in ALLOWED.items()
        for path in (ROOT / layer).rglob("*.py")
        for name in imports(path, frozenset(OURS - allowed))
    ]
    assert bad == []


def test_ssh_lives_in_two_rooms() -> None:
    bad = [
        str(path.relative_to(ROOT))
        for layer in ALLOWED
        for path in (ROOT / layer).rglob("*.py")
        if imports(path, frozenset(SSH))
        and not {path.relative_to(ROOT), path.parent.relative_to(ROOT)} & SSH_ROOMS
    ]
    assert bad == []
