"""A stand-in hub on loopback: the routes that reading metadata needs, and the ways in which hubs fail."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """``repos`` maps a name to its folder; ``fail`` a path's beginning to (status, headers, body)."""

    url: str = ""
    repos: dict[str, Path] = field(default_factory=dict)
    fail: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    ranges: bool = True
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0


@contextmanager
def serve() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.seen.append((self.path, dict(self.headers)))
            status, headers, body = _answer(hub, self.path, self.headers.get("Range"))
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            try:
                self.wfile.write(body)
                hub.sent += len(body)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(hub: Hub, path: str, span: str | None) -> tuple[int, dict[str, str], bytes]:
    for start, answer in hub.fail.items():
        if path.startswith(start):
            return answer
    for repo, folder in hub.repos.items():
        if path.startswith(f"/api/models/{repo}/revision/"):
            return _info(repo, folder, path)
        for prefix in (f"/{repo}/resolve/", f"/mirror/{repo}/"):
            if path.startswith(prefix):
                name = path.removeprefix(prefix)
                return _file(hub, folder / (name if "mirror" in prefix else name.split("/", 1)[1]), span)
    return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"


def _info(repo: str, folder: Path, path: str) -> tuple[int, dict[str, str], bytes]:
    revision = path.split("/revision/")[1].split("?", maxsplit=1)[0]
    if revision not in {"main", COMMIT}:
        return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
    siblings = [_sibling(p, folder) for p in sorted(folder.iterdir())]
    return (
        200,
        {"Content-Type": "application/json"},
        json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode(),
    )


def _sibling(path: Path, folder: Path) -> dict[str, Any]:
    size = path.stat().st_size
    entry: dict[str, Any] = {"rfilename": str(path.relative_to(folder)), "size": size, "blobId": "b" * 40}
    if path.suffix == ".safetensors":
        entry["lfs"] = {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "size": size,
            "pointerSize": 134,
        }
    return entry


def _file(hub: Hub, path: Path, span: str | None) -> tuple[int, dict[str, str], bytes]:
    if not path.is_file():
        return 404, {"X-Error-Code": "EntryNotFound"}, b"Entry not found"
    data = path.read_bytes()
    if not span or not hub.ranges:
        return 200, {"ETag": '"x"'}, data
    start, end = (int(n) for n in span.removeprefix("bytes=").split("-"))
    if start >= len(data):
        return 416, {}, b""
    part = data[start : end + 1]
    return 206, {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(data)}"}, part
