"""The pages that follow from the code: docs/tasks.md, docs/codes.md and the task table of README.md.

`invoke docs` writes them; a test refuses stale ones.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from invoke import Collection

import tasks
from checks.doctor.catalogue import Code, catalogue
from checks.doctor.report import fix_step

__all__ = ["ROOT", "pages", "write"]

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- tasks: written by `invoke docs` -->", "<!-- end of tasks -->"
FAMILIES = {
    "DRV": "The driver", "STK": "Wheels, Python, torch", "GPU": "Cards", "TP": "Parallelism",
    "MEM": "Memory", "DRF": "Drafts and speculation", "WGT": "Weights", "DSK": "Disk",
    "SVC": "The service", "NET": "Network and NCCL", "OPS": "The rest", "PRE": "Preconditions",
}  # fmt: skip


def pages() -> dict[Path, str]:
    """Each generated file with the text it should have."""
    readme = ROOT / "README.md"
    return {
        ROOT / "docs" / "tasks.md": _tasks_page(),
        ROOT / "docs" / "codes.md": _codes_page(),
        readme: _with_table(readme.read_text(encoding="utf-8")),
    }


def write() -> list[Path]:
    """Write what is stale; what was written."""
    stale = [p for p, text in pages().items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    for path in stale:
        text = pages()[path]
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return stale


def _all_tasks() -> list[tuple[str, Any]]:
    found = Collection.from_module(tasks)
    return sorted((name, found[name]) for name in found.task_names)


def _docstring(task: Any) -> str:
    return inspect.getdoc(task) or ""


def _with_table(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = [
        f"| [`{name}`](docs/tasks.md#{name}) | {_cell(_docstring(task).splitlines()[0])} |"
        for name, task in _all_tasks()
    ]
    return "\n".join([f"{before}{BEGIN}", "| task | what it does |", "|---|---|", *rows, f"{END}{after}"])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _tasks_page() -> str:
    head = [
        "# Tasks",
        "",
        "Written by `invoke docs` from surface/. `invoke TASK --help` says the same.",
    ]
    return "\n".join([*head, *(line for name, task in _all_tasks() for line in _task(name, task)), ""])


def _task(name: str, task: Any) -> Iterator[str]:
    yield from ("", f"## {name}", "", _docstring(task), "")
    arguments = sorted(task.get_arguments(), key=lambda a: a.name)
    words = list(task.positional or [])
    if words:
        yield f"`invoke {name} {' '.join(f'[{w.upper()}]' for w in words)}`"
        yield ""
    if arguments:
        yield from ("| option | meaning |", "|---|---|")
    yield from (f"| `{_option(a)}` | {_cell(a.help or '')}{_default(a)} |" for a in arguments)


def _option(arg: Any) -> str:
    name = arg.name.strip("_").replace("_", "-")
    if arg.kind is bool:
        return f"--no-{name}" if arg.default is True else f"--{name}"
    return f"--{name} {arg.kind.__name__.upper() if arg.kind in {int, float} else 'TEXT'}"


def _default(arg: Any) -> str:
    if (
        arg.kind is bool
        or arg.default in {None, "", inspect.Parameter.empty}
        or isinstance(arg.default, list)
    ):
        return ""
    return f" (default: `{arg.default}`)"


def _codes_page() -> str:
    lines = [
        "# What the doctor can name",
        "",
        "Written by `invoke docs` from checks/doctor/codes; in a terminal: `invoke explain CODE`.",
        "Values that the doctor computes for a host appear here as `<name>`.",
    ]
    codes = sorted(catalogue().codes.values(), key=lambda c: c.code)
    family = ""
    for code in codes:
        if code.code.rstrip("0123456789") != family:
            family = code.code.rstrip("0123456789")
            lines += ["", f"## {family}: {FAMILIES[family]}"]
        lines += _code(code)
    return "\n".join([*lines, ""])


def _code(code: Code) -> Iterator[str]:
    steps = "\n".join(fix_step(n, s.change, s.value, s.command, s.why) for n, s in enumerate(code.fix, 1))
    yield from ("", f"### {code.code} {code.slug}", "", f"{code.title} ({code.severity.value}).", "")
    yield from (f"- **What** {_prose(code.what)}", f"- **Why** {_prose(code.why)}", "- **Example**", "")
    yield from _block(code.example)
    yield from ("", "- **Fix**", "")
    yield from _block(steps)


def _prose(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _block(text: str) -> Iterator[str]:
    yield "  ```text"
    yield from (f"  {line}".rstrip() for line in text.splitlines())
    yield "  ```"
