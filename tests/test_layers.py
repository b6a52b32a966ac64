"""Arrows point one way, nothing connects at import, and SSH stays in two modules."""

import ast
import functools
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


@functools.cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_ssh_lives_in_two_rooms() -> None:
    bad = [
        str(path.relative_to(ROOT))
        for layer in ALLOWED
        for path in (ROOT / layer).rglob("*.py")
        if imports(path) & SSH and not {path.relative_to(ROOT), path.parent.relative_to(ROOT)} & SSH_ROOMS
    ]
    assert bad == []
