"""GETs for model metadata: a timeout per read, ranges, at most what was asked, and errors with a next step.

`requests` rather than huggingface_hub's client: two small routes are needed, its connection errors are
classes of a private HTTP library that changed between major versions, and importing it costs half a second
of a command that should answer in one.
"""

import re
from collections.abc import Mapping

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ReadTimeoutError
from urllib3.util import Retry

from checks.modelmeta.errors import HubUnreachable, RateLimited

__all__ = ["Client"]

_WAIT = re.compile(r"\bt=(\d+)")


class _Bearer(requests.auth.AuthBase):
    """The token for the endpoint alone. Set as auth, it also keeps ~/.netrc from replacing it."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Client:
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
        if _timed_out(error):
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

    def close(self) -> None:
        self._session.close()

    def refuse_server_trouble(self, response: requests.Response) -> None:
        """Raise for 429 and 5xx, which say nothing about the model."""
        code = response.status_code
        if code >= 400:
            response.close()
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

    def total(self, response: requests.Response) -> int:
        """The whole file's bytes, as the answer to a ranged GET tells them; 0 when it doesn't."""
        response.close()
        _, _, total = response.headers.get("Content-Range", "").partition("/")
        if total.isdigit():
            return int(total)
        size = response.headers.get("Content-Length", "")
        return int(size) if size.isdigit() and response.status_code == 200 else 0

    def ranged(self, response: requests.Response, start: int, length: int) -> bytes:
        """The bytes asked for. A server that ignores Range (200) sends from the beginning: skip those."""
        if response.status_code == 416:
            response.close()
            return b""
        if response.status_code == 206:
            return self.body(response, length)
        return self.body(response, start + length)[start:]


def _retry_after(headers: Mapping[str, str]) -> int | None:
    if headers.get("Retry-After", "").isdigit():
        return int(headers["Retry-After"])
    found = _WAIT.search(headers.get("RateLimit", ""))
    return int(found[1]) if found else None


def _timed_out(error: Exception) -> bool:
    """With retries in place a read timeout arrives wrapped as a connection error."""
    cause = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(error, requests.Timeout | ReadTimeoutError) or isinstance(cause, ReadTimeoutError)


def _short(error: Exception) -> str:
    text = str(error.args[0] if error.args else error)
    return text.rsplit(": ", 1)[-1].strip("')\"> ")[:200]
