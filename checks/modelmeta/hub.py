"""A hub's two routes for metadata, and its error vocabulary (``X-Error-Code``) in our words."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import requests

from checks.modelmeta.client import Client
from checks.modelmeta.errors import HubDenied, HubUnreachable, NotAModel, RepoMissing, RevisionMissing
from checks.modelmeta.meta import FileInfo

__all__ = ["HubSource", "check_repo_id", "hub_token"]

_REPO_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]{0,95}")
#: A repository's listing; the largest public ones take a few MB.
LISTING_LIMIT = 64 << 20


def check_repo_id(repo: str) -> None:
    """Refuse what no hub repository can be called, before any request."""
    if not _REPO_ID.fullmatch(repo) or repo.endswith((".git", "-", ".")):
        raise NotAModel(f"{repo!r} is not a repository name", hint="write it as owner/name, or give a folder")


def hub_token() -> str | None:
    """The operator's token where the hub's own tools look for it: HF_TOKEN, else the file they log in to."""
    from huggingface_hub import get_token  # noqa: PLC0415 - half a second that only this needs

    return get_token()


class HubSource:
    """A repository on a hub (the public one or one that speaks its protocol)."""

    def __init__(self, repo: str, revision: str, *, endpoint: str, token: str | None, timeout: float) -> None:
        check_repo_id(repo)
        self.label = repo
        self.commit: str | None = None
        self._revision = revision
        self._client = Client(endpoint, token, timeout)

    def close(self) -> None:
        self._client.close()

    def files(self) -> Mapping[str, FileInfo]:
        """Names, sizes and hashes at the revision; resolves ``commit``."""
        url = f"{self._client.endpoint}/api/models/{self.label}/revision/{quote(self._revision, safe='')}"
        info = self._json(url + "?blobs=true")
        self.commit = info.get("sha") if isinstance(info.get("sha"), str) else None
        siblings = info.get("siblings")
        if not self.commit or not isinstance(siblings, list):
            raise self._no_hub("its answer has no sha and siblings")
        listed = [s for s in siblings if isinstance(s, dict) and isinstance(s.get("rfilename"), str)]
        return {s["rfilename"]: self._file_info(s) for s in listed}

    def _file_info(self, sibling: Mapping[str, Any]) -> FileInfo:
        """A listing without sizes is completed by asking for the file's first byte."""
        lfs = sibling.get("lfs")
        large = lfs if isinstance(lfs, dict) else {}
        size = large.get("size", sibling.get("size"))
        if not isinstance(size, int):
            response = self._client.get(self._resolve(sibling["rfilename"]), (0, 0))
            self._judge(response)
            size = self._client.total(response)
        return FileInfo(size, large.get("sha256"), sibling.get("blobId"))

    def read(self, name: str, limit: int) -> bytes | None:
        response = self._client.get(self._resolve(name))
        if response.status_code == 404 and response.headers.get("X-Error-Code") == "EntryNotFound":
            response.close()
            return None
        self._judge(response)
        return self._client.body(response, limit)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        response = self._client.get(self._resolve(name), (start, start + length - 1))
        self._judge(response)
        return self._client.ranged(response, start, length)

    def _resolve(self, name: str) -> str:
        return f"{self._client.endpoint}/{self.label}/resolve/{self.commit or self._revision}/{quote(name)}"

    def _json(self, url: str) -> dict[str, Any]:
        response = self._client.get(url)
        self._judge(response)
        raw = self._client.body(response, LISTING_LIMIT)
        try:
            decoded = json.loads(raw)
        except (ValueError, RecursionError) as e:
            kind = response.headers.get("Content-Type", "no content type")
            raise self._no_hub(f"it sent {kind}, not JSON") from e
        if not isinstance(decoded, dict):
            raise self._no_hub("it sent JSON that is no object")
        return decoded

    def _no_hub(self, why: str) -> HubUnreachable:
        return HubUnreachable(
            f"{self._client.endpoint} does not answer like a model hub: {why}",
            hint="a proxy's login page, or a wrong --endpoint? open it in a browser",
        )

    def _judge(self, response: requests.Response) -> None:
        if response.status_code < 400:
            return
        self._client.refuse_server_trouble(response)
        raise self._refusal(
            response.status_code,
            response.headers.get("X-Error-Code", ""),
            response.headers.get("X-Error-Message", ""),
        )

    def _refusal(self, status: int, code: str, said: str) -> Exception:
        page, sent = f"{self._client.endpoint}/{self.label}", self._client.token is not None
        if code == "GatedRepo" and not sent:
            return HubDenied(
                f"{self.label} is gated and no token was sent ({status})",
                slug="hf-unauthorized",
                hint=f"accept the licence at {page}, then set HF_TOKEN to a token of that account",
            )
        if code == "GatedRepo":
            return HubDenied(
                f"{self.label} is gated and this token's account has no access ({status})",
                slug="hf-forbidden" if status == 403 else "hf-unauthorized",
                hint=f"accept the licence at {page} with the account that HF_TOKEN belongs to",
            )
        if code == "RevisionNotFound":
            return RevisionMissing(
                f"{self.label} has no revision {self._revision}", hint=f"see {page}/tree/main; `main` exists"
            )
        if status == 401 and "invalid" in said.lower():
            return HubDenied(
                f"the hub does not accept this token: {said}",
                slug="hf-unauthorized",
                hint="renew HF_TOKEN, or unset it for public models",
            )
        if code == "RepoNotFound" or status in {401, 404}:
            private = "" if sent else ", or it is private and no token was sent"
            return RepoMissing(
                self.label, f"{self.label} is not on {self._client.endpoint}{private} ({status})"
            )
        return HubDenied(
            f"{self.label}: the hub refuses ({status}) {said}".rstrip(),
            slug="hf-forbidden",
            hint="check what HF_TOKEN may read (a fine-grained token needs this repository)",
        )
