"""What is asked for of a long flat module: compiling all of pynvml costs a host more than the whole look."""

import ast
import threading
from collections.abc import Iterable

__all__ = ["pruned"]

#: CPython before 3.12 keeps the depth of its tree builder per process: two threads at once get a SystemError.
_ONE_AT_A_TIME = threading.Lock()


def pruned(source: str, roots: Iterable[str], prefixes: tuple[str, ...] = ()) -> str:
    """``source`` without the top-level definitions that ``roots`` don't need, directly or through others.

    What comes before the first statement (a licence) stays, so do imports and bare statements. ``prefixes``:
    names that the module finds by ``dir()``. Line for line: the text that is left is the author's own.
    """
    with _ONE_AT_A_TIME:
        body = ast.parse(source).body
    parts: dict[str, list[ast.stmt]] = {}
    kept: list[ast.stmt] = []
    for node in body:
        names = _defines(node)
        if not names:
            kept.append(node)
        for name in names:
            parts.setdefault(name, []).append(node)
    wanted = [n for n in parts if n.startswith(prefixes)] if prefixes else []
    wanted += [*roots, *(n for node in kept for n in _needs(node))]
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in parts and name not in seen:
            seen.add(name)
            kept += parts[name]
            wanted += [n for node in parts[name] for n in _needs(node)]
    lines = source.splitlines(keepends=True)
    head = lines[: _first_line(body[0]) - 1] if body else lines
    chosen = {id(node) for node in kept}
    spans = [lines[_first_line(n) - 1 : n.end_lineno] for n in body if id(n) in chosen]
    return "".join([*head, *(line for span in spans for line in span)])


def _defines(node: ast.stmt) -> list[str]:
    """Names bound by a plain definition; nothing for a statement that may do more."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    return []


def _needs(node: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])
