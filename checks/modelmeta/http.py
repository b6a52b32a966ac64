"""Models over HTTP: the hub's protocol and a plain mirror, by small GETs and ranges, with errors named.

`requests` rather than huggingface_hub's client: two small routes are needed, its connection errors are
classes of a private HTTP library that changed between major versions, and importing it costs half a second
of a command that should answer in one. The hub's error vocabulary (``X-Error-Code``) is mapped here.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from checks.modelmeta.errors import (
    HubDenied,
    HubUnreachable,
    NotAModel,
    RateLimited,
    RepoMissing,
    RevisionMissing,
)
from checks.modelmeta.meta import FileInfo

__all__ = ["HubSource", "MirrorSource", "check_repo_id"]

#: A mirror has no listing: these are asked for, and the shards that the index names.
MIRROR_FILES = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt",
    "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
_REPO_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]{0,95}")
_WAIT = re.compile(r"\bt=(\d+)")


def check_repo_id(repo: str) -> None:
    """Refuse what no hub repository can be called, before any request."""
    if not _REPO_ID.fullmatch(repo) or repo.endswith((".git", "-", ".")):
        raise NotAModel(f"{repo!r} is not a repository name", hint="write it as owner/name, or give a folder")


class _Bearer(requests.auth.AuthBase):
    """The token for the endpoint alone. Set as auth, it also keeps ~/.netrc from replacing it."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _Client:
    """GETs with a timeout per read, two quick retries on a gateway's failure, errors with a next step."""

    def __init__(self, endpoint: str, token: str | None, timeout: float) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.token = token
        self._timeout = timeout
        self._session = requests.Session()
        retry = Retry(
            total=2, connect=0, read=0, other=0, backoff_factor=0.2, status_forcelist=(502, 503, 504),
            raise_on_status=False, respect_retry_after_header=False,
        )  # fmt: skip
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry, pool_maxsize=8))

    def get(self, url: str, span: tuple[int, int] | None = None) -> requests.Response:
        headers = {"Accept-Encoding": "identity"}
        if span:
            headers["Range"] = f"bytes={span[0]}-{span[1]}"
        try:
            return self._session.get(
                url, headers=headers, auth=_Bearer(self.token), timeout=self._timeout, stream=True
            )
        except requests.RequestException as e:
            raise self._down(e) from e

    def body(self, response: requests.Response, limit: int) -> bytes:
        """At most ``limit`` bytes, whatever the server sends; the connection is given up after them."""
        try:
            with response:
                raw: bytes = response.raw.read(limit, decode_content=True)
                return raw
        except (requests.RequestException, OSError) as e:
            raise self._down(e) from e
        except Exception as e:  # urllib3's own errors are no OSError
            raise self._down(e) from e

    def _down(self, error: Exception) -> HubUnreachable:
        if isinstance(error, requests.exceptions.SSLError):
            return HubUnreachable(
                f"{self.endpoint}: the TLS certificate is not accepted: {_short(error)}",
                hint="a proxy that inspects TLS? set REQUESTS_CA_BUNDLE to its authority's file",
            )
        if isinstance(error, requests.Timeout):
            return HubUnreachable(
                f"{self.endpoint} gave no answer within {self._timeout:g} s",
                hint="check network and proxy (HTTPS_PROXY), or give a local folder",
            )
        if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.MissingSchema):
            return HubUnreachable(
                f"{self.endpoint} is not a URL: {_short(error)}", hint="give http(s)://HOST"
            )
        return HubUnreachable(
            f"{self.endpoint} cannot be reached: {_short(error)}",
            hint="check network and proxy (HTTPS_PROXY), name another --endpoint, or give a local folder",
        )

    def refuse_server_trouble(self, response: requests.Response) -> None:
        """Raise for 429 and 5xx, which say nothing about the model."""
        code = response.status_code
        if code == 429:
            wait = _retry_after(response.headers)
            when = f"in {wait} s" if wait is not None else "in a few minutes"
            raise RateLimited(
                f"{self.endpoint} refuses further requests for now (429)",
                retry_after=wait,
                hint=f"try again {when}; a token (HF_TOKEN) has a higher limit",
            )
        if code >= 500:
            said = response.headers.get("X-Error-Message", response.reason or "")
            raise HubUnreachable(
                f"{self.endpoint} failed: {code} {said}".rstrip(),
                hint="try again later, or another --endpoint",
            )


class HubSource:
    """A repository on a hub (the public one or one that speaks its protocol)."""

    def __init__(self, repo: str, revision: str, *, endpoint: str, token: str | None, timeout: float) -> None:
        check_repo_id(repo)
        self.label = repo
        self.commit: str | None = None
        self._revision = revision
        self._client = _Client(endpoint, token, timeout)

    def files(self) -> Mapping[str, FileInfo]:
        """Names, sizes and hashes at the revision; resolves ``commit``."""
        url = f"{self._client.endpoint}/api/models/{self.label}/revision/{quote(self._revision, safe='')}"
        info = self._json(url + "?blobs=true")
        self.commit = info.get("sha") if isinstance(info.get("sha"), str) else None
        siblings = info.get("siblings")
        if not self.commit or not isinstance(siblings, list):
            raise self._no_hub("its answer has no sha and siblings")
        return {s["rfilename"]: _file_info(s) for s in siblings if isinstance(s.get("rfilename"), str)}

    def read(self, name: str, limit: int) -> bytes | None:
        response = self._client.get(self._resolve(name))
        if response.status_code == 404 and response.headers.get("X-Error-Code") == "EntryNotFound":
            return None
        self._judge(response)
        return self._client.body(response, limit)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        response = self._client.get(self._resolve(name), (start, start + length - 1))
        self._judge(response)
        return _ranged_body(self._client, response, start, length)

    def _resolve(self, name: str) -> str:
        return f"{self._client.endpoint}/{self.label}/resolve/{self.commit or self._revision}/{quote(name)}"

    def _json(self, url: str) -> dict[str, Any]:
        response = self._client.get(url)
        self._judge(response)
        try:
            decoded = response.json()
        except requests.RequestException as e:
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


class MirrorSource:
    """A folder served over plain HTTP: no listing and no commit, only files under one URL."""

    def __init__(self, url: str, *, token: str | None, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise NotAModel(
                f"{url} is not an http(s) URL", hint="give the URL of the folder with config.json"
            )
        self.label = url
        self.commit: str | None = None
        self._client = _Client(url, token, timeout)
        self._sizes: dict[str, int | None] = {}

    def files(self) -> Mapping[str, FileInfo]:
        found = {name: size for name in MIRROR_FILES if (size := self.size(name)) is not None}
        if "config.json" not in found:
            raise NotAModel(f"{self.label} has no config.json", hint="give the URL of the model's folder")
        return {name: FileInfo(size) for name, size in found.items()}

    def size(self, name: str) -> int | None:
        """Bytes of a file, from a one-byte range; None when it is not there."""
        if name not in self._sizes:
            response = self._client.get(self._url(name), (0, 0))
            with response:
                self._sizes[name] = None if self._absent(response) else _total(response)
        return self._sizes[name]

    def read(self, name: str, limit: int) -> bytes | None:
        response = self._client.get(self._url(name))
        return None if self._absent(response) else self._client.body(response, limit)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        response = self._client.get(self._url(name), (start, start + length - 1))
        if self._absent(response):
            raise NotAModel(
                f"{self.label} has no {name}", hint="the mirror is incomplete; copy the model again"
            )
        return _ranged_body(self._client, response, start, length)

    def _url(self, name: str) -> str:
        return f"{self._client.endpoint}/{quote(name)}"

    def _absent(self, response: requests.Response) -> bool:
        self._client.refuse_server_trouble(response)
        if response.status_code in {401, 403}:
            raise HubDenied(
                f"{self.label} refuses access ({response.status_code})",
                slug="hf-unauthorized" if response.status_code == 401 else "hf-forbidden",
                hint="check the mirror's credentials",
            )
        return response.status_code >= 400 and response.status_code != 416


def _ranged_body(client: _Client, response: requests.Response, start: int, length: int) -> bytes:
    """A server that ignores Range (200) sends from the beginning: skip, and stop after what was asked."""
    if response.status_code == 416:
        response.close()
        return b""
    if response.status_code == 206:
        return client.body(response, length)
    return client.body(response, start + length)[start:]


def _total(response: requests.Response) -> int:
    _, _, total = response.headers.get("Content-Range", "").partition("/")
    if total.isdigit():
        return int(total)
    size = response.headers.get("Content-Length", "")
    return int(size) if size.isdigit() and response.status_code == 200 else 0


def _file_info(sibling: Mapping[str, Any]) -> FileInfo:
    lfs = sibling.get("lfs")
    large = lfs if isinstance(lfs, dict) else {}
    size = large.get("size", sibling.get("size"))
    return FileInfo(size if isinstance(size, int) else 0, large.get("sha256"), sibling.get("blobId"))


def _retry_after(headers: Mapping[str, str]) -> int | None:
    if headers.get("Retry-After", "").isdigit():
        return int(headers["Retry-After"])
    found = _WAIT.search(headers.get("RateLimit", ""))
    return int(found[1]) if found else None


def _short(error: Exception) -> str:
    text = str(error.args[0] if error.args else error)
    return text.rsplit(": ", 1)[-1].strip("')\"> ")[:200]
