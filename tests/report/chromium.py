"""A real headless Chromium for tests, spoken to over a pipe: no port, no driver program, no library.

The DevTools protocol over ``--remote-debugging-pipe``: JSON messages ended by a zero byte, on file
descriptors 3 and 4. The browser gets no network: its host resolver answers nothing.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventory.errors import EyasError
from tests.lab.needs import ensure_packages

__all__ = ["PACKAGE", "Browser", "browser", "find_chromium", "install"]

PACKAGE = "chromium-headless-shell"
NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome", "chromium-browser")
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-dev-shm-usage",
)  # fmt: skip


_KEYS = {"Tab": 9, "Enter": 13}


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def install() -> None:
    """Debian's package, where apt and root are there; without them the browser's tests skip and say why."""
    if find_chromium() or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    with suppress(EyasError):
        ensure_packages([PACKAGE], yes=True)


@dataclass
class Browser:
    """One page in one browser. ``requests``, ``console`` and ``broken`` hold what it did since `open`."""

    send_fd: int
    read_fd: int
    session: str = ""
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    loaded: bool = False
    _buffer: bytes = b""
    _next: int = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result; AssertionError when the browser refuses it."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send_fd, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._next:
            self._event(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def look(self, width: int, *, dark: bool = False, height: int = 800) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        self.requests.clear()
        self.console.clear()
        self.blocked.clear()
        self.loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.loaded:
            self._event(self._message())

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key],
            )

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + 30
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self.read_fd], [], [], max(0, end - time.monotonic()))
            block = os.read(self.read_fd, 1 << 20) if ready else b""
            assert block, "the browser gave no answer within 30 s" if not ready else "the browser ended"
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\0")
        decoded: dict[str, Any] = json.loads(line)
        return decoded

    def _event(self, message: dict[str, Any]) -> None:
        what, params = message.get("method"), message.get("params", {})
        if what == "Page.loadEventFired":
            self.loaded = True
        elif what == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif what == "Network.loadingFailed":
            self.blocked.append(params.get("blockedReason", "not blocked: " + params.get("errorText", "")))
        elif what == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif what in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown"}:
            self.console.append(json.dumps(params)[:500])


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A browser with an empty profile; gone, with its children, at the end."""
    to_read, send = os.pipe()
    read, to_write = os.pipe()
    root = ["--no-sandbox"] if os.geteuid() == 0 else []

    def wire() -> None:
        a, b = os.dup(to_read), os.dup(to_write)  # first out of the way of 3 and 4
        os.dup2(a, 3)
        os.dup2(b, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        argv = [program, *FLAGS, *root, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            argv,
            preexec_fn=wire,  # noqa: PLW1509 - two dup2 before exec
            pass_fds=(3, 4),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        try:
            made = Browser(send, read)
            made.attach()
            yield made
        finally:
            _end(process)
            os.close(send)
            os.close(read)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait(10)
