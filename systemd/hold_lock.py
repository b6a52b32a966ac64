"""Hold the host's lock while the operator's session lives: lock file, owner file, owner JSON, patience in s.

Prints "mine", or "held OWNER" and exits 75. Every byte on stdin is a sign of life; none for `patience`
seconds, or the end of stdin, frees the lock.
"""

import fcntl
import os
import select
import sys


def main(lock, owner, who, patience):
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
