"""The hub's HTTP: one handler for the endpoint, the CDN address, the package index and the control path."""

import json
import re
import socket
import threading
import time
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.lab.hub.answers import HubAnswers
from tests.lab.hub.body import send
from tests.lab.hub.faults import Fault, Faults
from tests.lab.hub.index import Index
from tests.lab.hub.repos import Repos

__all__ = ["Access", "Hub", "Request"]


@dataclass
class Access:
    """Who may read what. ``tokens`` maps a token to a user; without any, every token is taken.

    ``gated`` and ``private`` map a repository to the users who may read it; nobody else sees a private one,
    and a gated one answers its info and tree to all, and its files to those users alone, as the hub does.
    """

    tokens: dict[str, str] = field(default_factory=dict)
    gated: dict[str, list[str]] = field(default_factory=dict)
    private: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Request:
    """One line of the log: what was asked and answered. Of a token only its presence is kept."""

    side: str
    method: str
    path: str
    range: str
    token: bool
    agent: str
    status: int = 0
    sent: int = 0
    at: float = field(default_factory=time.time)


class Hub:
    """A running hub. Use as a context manager, or ``start()`` and ``stop()``.

    ``bind`` is the endpoint's address, ``cdn`` the one that LFS files are redirected to: it must differ, as
    clients tell the two apart by host name (None: files come from the endpoint itself). ``wheels`` folders
    are served as a package index at ``<url>/simple/``.
    """

    def __init__(
        self,
        root: Path,
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        cdn: str | None = "127.0.0.2",
        wheels: tuple[Path, ...] = (),
        access: Access | None = None,
        page: int = 1000,
    ) -> None:
        self.repos = Repos(root)
        self.index = Index(wheels, self.repos)
        self.faults = Faults()
        self.access = access or Access()
        self.page = page
        self.log: list[Request] = []
        self._server = _Server(self, bind, port, "endpoint")
        self._cdn = _Server(self, cdn, 0, "cdn") if cdn else None
        self.url = self._server.url
        self.cdn_url = self._cdn.url if self._cdn else None

    def start(self) -> Self:
        for server in (self._server, self._cdn):
            if server:
                threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        for server in (self._server, self._cdn):
            if server:
                server.shutdown()
                server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def env(self) -> dict[str, str]:
        """What a client's environment needs to use this hub."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1"}

    @property
    def index_url(self) -> str:
        """For pip's and uv's ``--index-url``."""
        return f"{self.url}/simple/"

    def sent(self, pattern: str = "") -> int:
        """Body bytes sent so far for requests whose ``METHOD path`` the pattern is found in."""
        return sum(r.sent for r in self.requests(pattern))

    def requests(self, pattern: str = "") -> list[Request]:
        return [r for r in list(self.log) if re.search(pattern, f"{r.method} {r.path}")]

    def state(self) -> dict[str, Any]:
        """For ``GET /_lab/state``."""
        return {
            "url": self.url,
            "cdn": self.cdn_url,
            "requests": len(self.log),
            "sent": self.sent(),
            "faults": self.faults.dump(),
            "access": {"gated": self.access.gated, "private": self.access.private},
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub: Hub, address: str, port: int, side: str) -> None:
        self.hub, self.side = hub, side
        super().__init__((address, port), _Handler)
        self.url = f"http://{address}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the hub."""


class _Handler(HubAnswers, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    fault: Fault | None

    def setup(self) -> None:
        super().setup()
        self.hub = self.server.hub
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: Any) -> None:
        """The log is ``Hub.log``."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        where = urlsplit(self.path)
        self.route, self.query = unquote(where.path), parse_qs(where.query)
        self.payload = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.route.startswith("/_lab/"):
            return self._control()
        seen = ("Range", ""), ("User-Agent", "")
        asked, agent = (self.headers.get(name, default) for name, default in seen)
        token = "Authorization" in self.headers
        self.entry = Request(self.server.side, self.command, self.path, asked, token, agent)
        self.hub.log.append(self.entry)
        self.fault = self.hub.faults.take(f"{self.command} {self.path}")
        if self.fault and self.fault.delay:
            time.sleep(self.fault.delay)
        if self.fault and self.fault.status:
            return self._refuse(self.fault)
        return self.answer()

    def _refuse(self, fault: Fault) -> None:
        headers = dict(fault.headers)
        if fault.message:
            headers["X-Error-Message"] = fault.message
        self.reply(fault.status or 500, headers=headers, body=fault.message.encode())

    def _control(self) -> None:
        """GET state, log, faults; POST faults (replaces all), access; DELETE faults, log."""
        hub = self.hub
        try:
            if self.route == "/_lab/faults" and self.command in {"POST", "DELETE"}:
                hub.faults.replace(json.loads(self.payload) if self.command == "POST" else [])
            elif self.route == "/_lab/access" and self.command == "POST":
                hub.access = Access(**json.loads(self.payload))
            elif self.route == "/_lab/log" and self.command == "DELETE":
                hub.log.clear()
        except (TypeError, ValueError, re.error) as e:
            return self.json(400, {"error": str(e)})
        views: dict[str, Any] = {"/_lab/faults": hub.faults.dump, "/_lab/access": hub.state}
        views |= {"/_lab/state": hub.state, "/_lab/log": lambda: [asdict(r) for r in hub.log]}
        if self.route not in views:
            return self.json(404, {"error": f"only {', '.join(views)}"})
        return self.json(200, views[self.route]())

    def json(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        self.reply(status, headers={"Content-Type": "application/json", **(headers or {})}, body=body)

    def reply(self, status: int, *, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.note(status, 0 if self.command == "HEAD" else len(body))
        self.send_response(status)
        headers = headers or {}
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def note(self, status: int, sent: int) -> None:
        """Complete this request's log line, where it has one."""
        if (entry := getattr(self, "entry", None)) is not None:
            entry.status, entry.sent = status, sent

    def file(self, path: Path, headers: dict[str, str] | None = None) -> None:
        send(self, path, headers or {}, self.fault)

    def link(self, path: str) -> str:
        return f"{self.server.url}{quote(path)}"
