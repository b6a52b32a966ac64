"""One command's channel: everything sent and read at once, or held open as a session."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import paramiko

from provision.shell import lines_of

__all__ = ["ChannelSession", "Lost", "converse"]


class Lost(Exception):
    """The connection ended before the command's exit status came. ``why``: what the client said."""

    def __init__(self, why: BaseException) -> None:
        super().__init__(str(why) or type(why).__name__)


def converse(
    channel: paramiko.Channel, send: bytes, deadline: float, on_line: Callable[[str], None] | None
) -> tuple[int, str, str]:
    """Exit status, stdout, stderr. ``deadline``: seconds without a byte. Raises Lost; closes the channel."""
    errors: list[bytes] = []
    output: list[bytes] = []
    failure: list[BaseException] = []

    def feed() -> None:
        try:
            channel.sendall(send)
            channel.shutdown_write()
        except (OSError, EOFError) as e:
            failure.append(e)  # the command ended without reading; its exit code tells

    def drain_errors() -> None:
        with contextlib.suppress(TimeoutError, OSError):
            while data := channel.recv_stderr(1 << 16):
                errors.append(data)

    def chunks() -> Iterator[bytes]:
        while data := channel.recv(1 << 16):
            output.append(data)
            yield data

    channel.settimeout(deadline)
    workers = [threading.Thread(target=f, daemon=True) for f in (feed, drain_errors)]
    for w in workers:
        w.start()
    try:
        for text in lines_of(chunks()):
            if on_line:
                on_line(text)
        channel.status_event.wait(deadline)
        code = channel.recv_exit_status() if channel.exit_status_ready() else -1
    except (TimeoutError, OSError, EOFError) as e:
        raise Lost(e) from e
    finally:
        channel.close()
    for w in workers:
        w.join(5)
    if code == -1:
        raise Lost(ConnectionError("closed without an exit status"))
    return code, b"".join(output).decode("utf-8", "replace"), b"".join(errors).decode("utf-8", "replace")


class ChannelSession:
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel, self._buffer = channel, b""

    def readline(self, *, timeout: float) -> str:
        self._channel.settimeout(timeout)
        while b"\n" not in self._buffer:
            try:
                data = self._channel.recv(4096)
            except TimeoutError:
                return ""
            if not data:
                break
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace")

    def send(self, data: bytes) -> None:
        self._channel.sendall(data)

    def close(self) -> None:
        self._channel.close()

    @property
    def closed(self) -> bool:
        return self._channel.closed or self._channel.exit_status_ready()
