"""Arrows point one way, nothing connects at import, and SSH stays in two modules."""

import ast
import functools
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
SSH_MODULES = {Path("provision/ssh.py"), Path("provision/hostkeys.py")}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement in a module, however deep; what is inside expressions imports nothing."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, name, ()):
            yield child
            yield from statements(child)


@functools.cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_arrows_point_one_way() -> None:
    bad = [
        f"{path.relative_to(ROOT)} imports {name}"
        for layer, allowed in ALLOWED.items()
        for path in (ROOT / layer).rglob("*.py")
        for name in imports(path) & OURS - allowed
    ]
    assert bad == []


def test_ssh_lives_in_two_modules() -> None:
    bad = [
        str(path.relative_to(ROOT))
        for layer in ALLOWED
        for path in (ROOT / layer).rglob("*.py")
        if imports(path) & SSH and path.relative_to(ROOT) not in SSH_MODULES
    ]
    assert bad == []
