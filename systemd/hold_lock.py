"""Hold the host's lock while the operator's session lives.

Arguments: lock file, owner file, owner JSON, patience in s, work file.

Prints "mine", or "held OWNER" and exits 75. Every byte on stdin is a sign of life; none for `patience`
seconds, or the end of stdin, frees the lock. Long work of an operator keeps the work file open: what still
does when the lock is taken belongs to one that is gone, and is killed.

A run that lost its link may be back before its old session is known to be dead: it takes its own lock over.
"""

import fcntl
import json
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


def take(fd):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def told(owner):
    """What the holder says of itself: a JSON object, empty when nobody can tell."""
    try:
        with open(owner, encoding="utf-8") as f:
            found = json.load(f)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def take_over(fd, lock, holder, run):
    """End the former session of this very run; True when its lock is ours."""
    if not run or holder.get("run") != run or holder.get("holder") not in workers(lock):
        return False
    os.kill(holder["holder"], signal.SIGKILL)
    for _ in range(100):
        if take(fd):
            return True
        time.sleep(0.05)
    return False


def note(owner, who):
    """Who holds it, for others to read. A full disk is no reason to leave a host without a lock."""
    try:
        with open(owner + ".new", "w", encoding="utf-8") as f:
            json.dump(dict(who, holder=os.getpid()), f)
        os.replace(owner + ".new", owner)
    except OSError as e:
        print("the owner could not be noted:", e, file=sys.stderr, flush=True)


def main(lock, owner, who, patience, work):
    who = json.loads(who)
    os.makedirs(os.path.dirname(lock), mode=0o755, exist_ok=True)
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    if not take(fd):
        holder = told(owner)
        if not take_over(fd, lock, holder, who.get("run")):
            print("held " + json.dumps(holder), flush=True)
            return 75
    if not end_leftovers(work):
        print("stuck: work of an operator that is gone can't be ended: processes", *workers(work), flush=True)
        return 75
    note(owner, who)
    print("mine", flush=True)
    while select.select([0], [], [], float(patience))[0] and os.read(0, 64):
        pass
    try:
        os.unlink(owner)
    except FileNotFoundError:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
