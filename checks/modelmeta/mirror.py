"""A model's folder behind a plain web server: no listing, no commit, only files under one URL."""

from collections.abc import Mapping
from urllib.parse import quote

import requests

from checks.modelmeta.client import Client
from checks.modelmeta.errors import HubDenied, NotAModel
from checks.modelmeta.meta import FileInfo

__all__ = ["MirrorSource"]

#: A mirror has no listing: these are asked for, and the shards that the index names.
MIRROR_FILES = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "pytorch_model.bin.index.json", "tokenizer.json", "tokenizer_config.json",
    "vocab.json", "merges.txt",
    "tokenizer.model", "chat_template.jinja",
)  # fmt: skip


class MirrorSource:
    """A folder served over plain HTTP: no listing and no commit, only files under one URL."""

    def __init__(self, url: str, *, token: str | None, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise NotAModel(
                f"{url} is not an http(s) URL", hint="give the URL of the folder with config.json"
            )
        self.label = url
        self.commit: str | None = None
        self._client = Client(url, token, timeout)
        self._sizes: dict[str, int | None] = {}

    def close(self) -> None:
        self._client.close()

    def files(self) -> Mapping[str, FileInfo]:
        found = {name: size for name in MIRROR_FILES if (size := self.size(name)) is not None}
        if "config.json" not in found:
            raise NotAModel(f"{self.label} has no config.json", hint="give the URL of the model's folder")
        return {name: FileInfo(size) for name, size in found.items()}

    def size(self, name: str) -> int | None:
        """Bytes of a file, from a one-byte range; None when it is not there."""
        if name not in self._sizes:
            response = self._client.get(self._url(name), (0, 0))
            self._sizes[name] = None if self._absent(response) else self._client.total(response)
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
        return self._client.ranged(response, start, length)

    def _url(self, name: str) -> str:
        return f"{self._client.endpoint}/{quote(name)}"

    def _absent(self, response: requests.Response) -> bool:
        self._client.refuse_server_trouble(response)
        if response.status_code in {401, 403}:
            raise HubDenied(
                f"{self.label} refuses access ({response.status_code})",
                slug="hf-unauthorized" if response.status_code == 401 else "hf-forbidden",
                hint="eyas sends a mirror no credentials: open it to this machine, or copy the model here",
            )
        return response.status_code >= 400 and response.status_code != 416
