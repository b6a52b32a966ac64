"""Lines of a host's kernel log. The host's /dev/kmsg is a pipe that its journald reads, and takes each record
as the kernel's: `journalctl -k` shows it with the kernel transport, as on a real box.
"""

import fcntl
import os
import struct
import termios
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["drain", "open_pipe", "say"]

WARNING = 4  # facility kernel, level warning
PATIENCE_S = 5.0


def open_pipe(path: Path) -> int:
    """Open (and make) it for reading and writing: then no program that logs there waits for a reader."""
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def drain(pipe: int) -> None:
    with suppress(BlockingIOError):
        while os.read(pipe, 65536):
            pass


def say(home: Path, lines: Iterable[str]) -> int:
    """Log the lines on the running host; returns how many its journald took.

    One record at a time, the next once the last was read: a read takes all there is as one record.
    """
    counter = home / "kernel.seq"
    taken = 0
    pipe = open_pipe(home / "kmsg")
    try:
        for line in lines:
            number = int(counter.read_text()) if counter.exists() else 0
            if not _emptied(pipe):
                break
            os.write(pipe, f"{WARNING},{number},{int(time.monotonic() * 1e6)},-;{line}\n".encode())
            counter.write_text(str(number + 1))
            taken += _emptied(pipe)
    finally:
        os.close(pipe)
    return taken


def _emptied(pipe: int) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if not struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))[0]:
            return True
        time.sleep(0.005)
    return False
