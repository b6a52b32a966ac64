"""Replace branches in a deployment's file by the hub's commits of today, line by line, comments kept."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inventory.errors import CheckRefused, EyasError, HostUnreachable, InventoryError, UsageError
from inventory.load import find_deployment, load_deployment
from inventory.model import Deployment, ModelRef
from inventory.yamlfile import Document, Loc, parse_yaml, read_text
from provision.localfile import replace_text

__all__ = ["Pinned", "hub_commit", "pin_deployment"]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LINE = re.compile(r"(?P<head>\s*revision:\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s#]+)(?P<tail>\s*(?:#.*)?)")
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Pinned:
    """One model of the file: which key, its repository, what stood there and the commit that stands now."""

    key: str
    repo: str
    before: str
    commit: str

    @property
    def changed(self) -> bool:
        return self.before != self.commit


def pin_deployment(
    name_or_path: str | Path, *, root: Path | None = None, update: bool = False, revision: str | None = None
) -> list[Pinned]:
    """Pin the target and the draft of one deployment, or neither when one of them cannot be looked up.

    A model that is pinned already is left alone unless ``update``; then ``revision`` (default main) decides.
    Raises InventoryError (the file), CheckRefused (the hub says no) or HostUnreachable (no answer).
    """
    path = find_deployment(name_or_path, root=root)
    deployment = load_deployment(path)
    text = read_text(path)
    doc = parse_yaml(text, path)
    token = _token(deployment)
    pins = [_look_up(loc, ref, token, update=update, revision=revision) for loc, ref in _models(deployment)]
    for loc, pin in zip((loc for loc, _ in _models(deployment)), pins, strict=True):
        if pin.changed:
            text = _edit(text, doc, loc, pin.commit)
            doc = parse_yaml(text, path)
    if any(pin.changed for pin in pins):
        replace_text(path, text, hint="copy it to inventory/deployments first")
    return pins


def _models(deployment: Deployment) -> Iterator[tuple[Loc, ModelRef]]:
    if deployment.target.repo:
        yield ("target",), deployment.target
    if deployment.draft.model and deployment.draft.model.repo:
        yield ("draft", "model"), deployment.draft.model


def _look_up(loc: Loc, ref: ModelRef, token: str | None, *, update: bool, revision: str | None) -> Pinned:
    repo = ref.repo or ""
    commit = ref.revision
    if not ref.pinned or update:
        commit = hub_commit(repo, revision or ("main" if ref.pinned else ref.revision), token=token)
    return Pinned(".".join(map(str, loc)), repo, ref.revision, commit)


def _token(deployment: Deployment) -> str | None:
    """The hub token on this machine, or None: a public model needs none, the hub's answer decides."""
    kind, _, name = (deployment.hub_token or "env:HF_TOKEN").partition(":")
    if kind == "env":
        return os.environ.get(name) or None
    try:
        return Path(name).expanduser().read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read hub_token from {name}", hint="correct hub_token") from e


def hub_commit(repo: str, revision: str, *, token: str | None = None, endpoint: str | None = None) -> str:
    """The commit a branch or tag of a hub repository points to now. ``endpoint``: default HF_ENDPOINT."""
    api = HfApi(endpoint=endpoint or os.environ.get("HF_ENDPOINT") or None, token=token)
    try:
        commit = api.model_info(repo, revision=revision, timeout=_TIMEOUT_S).sha
    except HFValidationError as e:
        raise InventoryError(f"{repo!r} is not a repository name", hint="write owner/name") from e
    except Exception as e:  # connection errors have no base class that both client lines share
        raise _refused(repo, revision, api.endpoint, e, with_token=token is not None) from e
    if not commit or not _COMMIT.fullmatch(commit):
        raise CheckRefused(
            f"{api.endpoint} names no commit for {repo}@{revision}", hint="is HF_ENDPOINT a hub?"
        )
    return commit


def _refused(repo: str, revision: str, endpoint: str, e: Exception, *, with_token: bool) -> EyasError:
    what = f"{repo}@{revision} at {endpoint}"
    if isinstance(e, OfflineModeIsEnabled):
        return UsageError(f"cannot ask for {what}: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
    if not isinstance(e, HfHubHTTPError):
        return HostUnreachable(f"no answer for {what}: {e}", hint="check the network, or set HF_ENDPOINT")
    status = e.response.status_code
    if isinstance(e, RevisionNotFoundError):
        return CheckRefused(f"404: no such revision: {what}", hint="name a branch or tag that exists")
    if isinstance(e, GatedRepoError) or status == 403:
        if status == 401:
            return CheckRefused(f"401: {what} is gated and no token was sent", hint="export HF_TOKEN=...")
        return CheckRefused(
            f"403: this token may not read {what}",
            hint=f"accept the terms at {endpoint}/{repo}, or use its owner's",
        )
    if status == 401 and with_token and not isinstance(e, RepositoryNotFoundError):
        return CheckRefused(
            f"401: the token is not valid for {what}", hint="make a new token, export HF_TOKEN"
        )
    if status in {401, 404}:
        hint = "correct the name" if with_token else "correct the name; if it is private, export HF_TOKEN"
        return CheckRefused(f"{status}: no such repository: {what}", hint=hint)
    if status == 429:
        hint = (
            "wait some minutes" if with_token else "wait some minutes, or export HF_TOKEN for a higher limit"
        )
        return HostUnreachable(f"429: the hub refuses more requests now: {what}", hint=hint)
    return HostUnreachable(f"{status} for {what}: {e.server_message or e}", hint="try again later")


def _edit(text: str, doc: Document, loc: Loc, commit: str) -> str:
    """The text with one revision replaced, or added below ``repo``; everything else byte for byte."""
    lines = text.splitlines(keepends=True)
    at = doc.lines.get((*loc, "revision")) or doc.lines[(*loc, "repo")]
    body = lines[at - 1].rstrip("\r\n")
    end = lines[at - 1][len(body) :]
    if (*loc, "revision") in doc.lines:
        match = _LINE.fullmatch(body)
        lines[at - 1] = f"{match['head']}{commit}{match['tail']}{end}" if match else body + end
    else:
        indent = body[: len(body) - len(body.lstrip())]
        newline = "\r\n" if "\r\n" in text else "\n"
        lines[at - 1] = f"{body}{newline}{indent}revision: {commit}{end}"
    result = "".join(lines)
    if not _only_changed(doc, result, (*loc, "revision"), commit):
        raise InventoryError(
            f"{doc.path}:{at}: cannot edit this line without touching more than the revision",
            hint=f'write "revision: {commit}" there yourself, on a line of its own',
        )
    return result


def _only_changed(doc: Document, text: str, loc: Loc, commit: str) -> bool:
    """Proof of the edit: the file reads as before, but for this one key."""
    try:
        after = parse_yaml(text, doc.path).data
    except InventoryError:
        return False
    return bool(_with(doc.data, loc, commit) == after)


def _with(data: dict[str, object], loc: Loc, value: str) -> dict[str, object]:
    key, *rest = map(str, loc)
    inner = data.get(key)
    if rest and isinstance(inner, dict):
        return {**data, key: _with(inner, tuple(rest), value)}
    return {**data, key: value}
