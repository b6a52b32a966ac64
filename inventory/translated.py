"""Where a command to translate comes from, and the deployment file it becomes."""

import sys
from pathlib import Path

import yaml

from inventory.errors import UsageError
from inventory.model import Deployment
from inventory.snippet import LONGEST, Note

__all__ = ["snippet_text", "write_deployment"]


def snippet_text(command: str | None, file: str | None) -> str:
    """The snippet given on the command line, in a file, or on standard input ("-").

    Raises UsageError when none or both are given, or the file can't be read as text.
    """
    if (command is None) == (file is None):
        raise UsageError(
            "give --command or --file, one of them", hint='invoke translate --command "vllm serve ..."'
        )
    if command is not None:
        return command
    try:
        return sys.stdin.read(LONGEST + 1) if file == "-" else _read_text(Path(str(file)))
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"can't read {file}: {e}", hint="give a text file, or - for standard input") from e


def _read_text(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return lines.read(LONGEST + 1)


def write_deployment(
    deployment: Deployment,
    notes: tuple[Note, ...],
    folder: Path | None = None,
    *,
    head: str = "Translated from a command; what changed:",
) -> Path:
    """Write ``NAME.yml``, with the notes as comments below ``head``.

    Raises UsageError when it is there already.
    """
    path = (folder or Path("inventory/deployments")) / f"{deployment.name}.yml"
    fields = deployment.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    comments = "".join(f"# {_said(n)}\n" for n in notes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as out:
            out.write(
                f"# {head}\n" + comments + yaml.safe_dump(fields, sort_keys=False),
            )
    except FileExistsError as e:
        raise UsageError(f"{path} exists and is not overwritten", hint="choose another name") from e
    except OSError as e:
        raise UsageError(f"can't write {path}: {e}", hint="check the folder") from e
    return path


def _said(n: Note) -> str:
    return f"{n.kind} {n.flag}: {n.text}" if n.flag else n.text
