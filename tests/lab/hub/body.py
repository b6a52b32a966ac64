"""Sending a file: ranges as clients resume with, and every way a transfer can be spoiled."""

import re
import time
from email.message import Message
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from tests.lab.hub.faults import Fault

if TYPE_CHECKING:
    from tests.lab.hub.server import Request

__all__ = ["send"]

_BLOCK = 256 * 1024
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_SOUND = Fault(match="")


class Sender(Protocol):
    """What ``send`` needs of a handler."""

    command: str
    entry: "Request"
    headers: Message
    wfile: BufferedIOBase
    close_connection: bool

    def send_response(self, code: int, message: str | None = None) -> None: ...
    def send_header(self, keyword: str, value: str) -> None: ...
    def end_headers(self) -> None: ...


def send(handler: Sender, path: Path, headers: dict[str, str], fault: Fault | None) -> None:
    """Answer 200, 206 or 416 with the file's bytes (none for HEAD), spoiled as the fault says."""
    fault = fault or _SOUND
    size = path.stat().st_size
    wanted = None if fault.ignore_range else handler.headers.get("Range")
    asked = _RANGE.fullmatch(wanted or "")
    partial = bool(asked and any(asked.groups()))
    part = _part(asked, size) if asked and partial else (0, size)
    if part is None:
        return _unsatisfiable(handler, size)
    start, end = part
    if fault.truncate is not None:
        end = min(end, start + fault.truncate)
    handler.entry.status = 206 if partial else 200
    handler.send_response(handler.entry.status)
    if partial:
        headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
    for name, value in {"Accept-Ranges": "bytes", **headers, "Content-Length": str(end - start)}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "HEAD":
        return None
    with path.open("rb") as content:
        return _pour(handler, content, start, end, fault)


def _part(asked: re.Match[str], size: int) -> tuple[int, int] | None:
    """Half-open byte range; None when it lies outside the file."""
    first, last = asked.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    return (start, end) if start < end else None


def _unsatisfiable(handler: Sender, size: int) -> None:
    handler.entry.status = 416
    handler.send_response(416)
    handler.send_header("Content-Range", f"bytes */{size}")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _pour(handler: Sender, content: BinaryIO, start: int, end: int, fault: Fault) -> None:
    stop = end if fault.cut_at is None else min(end, start + fault.cut_at)
    block = _BLOCK if fault.rate is None else max(1, min(_BLOCK, int(fault.rate / 20)))
    began, at = time.monotonic(), start
    content.seek(start)
    while at < stop:
        data = content.read(min(block, stop - at))
        spoiled = _flipped(data, at, fault.flip_at)
        at += len(data)
        if fault.rate is not None:
            time.sleep(max(0.0, (at - start) / fault.rate - (time.monotonic() - began)))
        handler.entry.sent = at - start  # before the write: a client that has read all finds all counted
        handler.wfile.write(spoiled)
    if stop < end:
        handler.close_connection = True


def _flipped(data: bytes, at: int, flip_at: int | None) -> bytes:
    if flip_at is None or not at <= flip_at < at + len(data):
        return data
    spoiled = bytearray(data)
    spoiled[flip_at - at] ^= 0xFF
    return bytes(spoiled)
