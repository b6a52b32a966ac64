"""Hold the host's lock while the operator's session lives.

Arguments: lock file, owner file, owner JSON, patience in s, work file.

Prints "mine", or "held OWNER" and exits 75. Every byte on stdin is a sign of life; none for `patience`
seconds, or the end of stdin, frees the lock. Long work of an operator keeps the work file open: what still
does when the lock is taken belongs to one that is gone, and is killed.
"""

import fcntl
import os
import select
import signal
import sys
import time


def workers(work):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = "/proc/" + pid + "/fd/"
        try:
            if any(os.readlink(folder + fd) == work for fd in os.listdir(folder)):
                found.append(int(pid))
        except OSError:
            pass
    return found


def end_leftovers(work):
    """True when nobody works any more."""
    for _ in range(100):
        left = workers(work)
        if not left:
            return True
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
    return False


def main(lock, owner, who, patience, work):
    os.makedirs(os.path.dirname(lock), mode=0o755, exist_ok=True)
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            with open(owner, encoding="utf-8") as f:
                print("held " + f.read().strip(), flush=True)
        except FileNotFoundError:
            print("held {}", flush=True)
        return 75
    if not end_leftovers(work):
        print("stuck: work of an operator that is gone can't be ended: processes", *workers(work), flush=True)
        return 75
    with open(owner + ".new", "w", encoding="utf-8") as f:
        f.write(who)
    os.replace(owner + ".new", owner)
    print("mine", flush=True)
    while select.select([0], [], [], float(patience))[0] and os.read(0, 64):
        pass
    os.unlink(owner)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
