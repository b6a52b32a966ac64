"""What an operator writes on a command line for a model, as a `ModelRef`."""

from pathlib import Path

from checks.modelmeta.hub import check_repo_id
from inventory.errors import UsageError
from inventory.model import ModelRef

__all__ = ["model_ref"]


def model_ref(text: str, flag: str = "--model") -> ModelRef:
    """A URL, a folder (when it exists or is written as a path), else a repository ``owner/name[@revision]``.

    Raises UsageError naming ``flag`` for an empty value or one that looks like an option.
    """
    text = text.strip()
    if not text or text.startswith("-"):
        raise UsageError(f"{flag} needs a model", hint=f"{flag} owner/name, or a folder")
    if text.startswith(("http://", "https://")):
        return ModelRef(url=text)
    if text.startswith(("/", "./", "../", "~")) or text in {".", ".."} or Path(text).is_dir():
        return ModelRef(path=text)
    repo, _, revision = text.partition("@")
    check_repo_id(repo)
    return ModelRef(repo=repo, revision=revision or "main")
