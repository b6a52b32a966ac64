"""Relays (ProxyJump) of one command line: one connection to each, for all hosts behind it."""

import threading
import time
from collections.abc import Callable

from fabric import Connection

__all__ = ["Relays"]


class Relays:
    """One connection to each relay (ProxyJump), for all hosts behind it.

    A connection a host would meet the relay's MaxStartups, which refuses at random from the tenth log-in.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._open: dict[str, Connection] = {}
        self._failed: dict[str, tuple[float, Exception]] = {}

    def get(self, relay: Connection, open_it: Callable[[Connection], None]) -> Connection:
        """The open one, or ``relay`` opened now; who waits behind a failed attempt shares its error."""
        key, asked = f"{relay.user}@{relay.host}:{relay.port}", time.monotonic()
        with self._mutex:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key in self._open and self._open[key].is_connected:
                return self._open[key]
            when, error = self._failed.get(key, (0.0, None))
            if error and when > asked:
                raise error
            try:
                open_it(relay)
            except Exception as e:
                self._failed[key] = time.monotonic(), e
                raise
            self._open[key] = relay
            return relay
