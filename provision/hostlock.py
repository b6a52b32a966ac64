"""One operator a host at a time: a flock on the host, held by an open SSH session.

The lock lives as long as the session: an operator that is killed, or whose network is gone for a minute,
holds nothing any more, and a reboot frees it. Nobody has to clean up a stale lock by hand. Work that such an
operator left running on the host is ended by whoever takes the lock next, before it does anything.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

from inventory.errors import HostUnreachable, LockHeld
from provision import layout
from provision.journal import operator
from provision.programs import program
from provision.shell import Session, Shell

__all__ = ["host_lock"]

_BEAT_S = 15
_GONE_S = 60


@contextlib.contextmanager
def host_lock(shell: Shell, what: str, *, run: str = "") -> Iterator[Session]:
    """Hold the host's lock for the block. Raises LockHeld naming the owner, since when and for what.

    The session is handed out: when it is closed before the block ends, the lock is lost. ``run`` names a run
    of which only one process can be alive: a session that it left behind gives the lock up at once.
    """
    who = {
        "who": f"{operator()}@{socket.gethostname()}",
        "since": time.time(),
        "what": what,
        "run": run,
    }
    argv = (
        "python3",
        "-c",
        program("hold_lock.py").decode(),
        f"{layout.LOCK}/flock",
        f"{layout.LOCK}/owner.json",
        json.dumps(who),
        str(_GONE_S),
        layout.WORK,
    )
    with shell.session(argv) as session:
        answer = session.readline(timeout=30)
        if answer.startswith("held "):
            raise LockHeld(
                _owner(answer[5:]),
                hint="wait for them; the lock ends with their session",
                host=shell.host.name,
            )
        if answer != "mine":
            raise HostUnreachable(
                f"the lock could not be taken: {answer or 'no answer'}", host=shell.host.name
            )
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(session, stop), daemon=True)
        beat.start()
        try:
            yield session
        finally:
            stop.set()


def _beat(session: Session, stop: threading.Event) -> None:
    while not stop.wait(_BEAT_S):
        try:
            session.send(b".")
        except OSError:
            return


def _owner(text: str) -> str:
    try:
        o = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(o["since"]))
    except (ValueError, KeyError, TypeError):
        return "another operator works on this host"
    return f"{o['who']} works on this host since {since}: {o['what']}"
