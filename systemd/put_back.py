"""The way back from a bench that serves other releases for a while; a unit started before the first of them.

    put_back.py MARKER LOCK_FILE OWNER_FILE WORK_FILE AUDIT

It waits for the host's lock, which the operator holds as long as the bench runs. Whoever ends it properly
removes the marker first. When the lock comes free and the marker is still there, the operator was killed, cut
off, or the host was rebooted: the release that served before is served again. Exit 1 is tried again.
"""

import fcntl
import json
import os
import subprocess
import sys
import time

from hold_lock import end_leftovers

FOLDER = os.path.dirname(os.path.abspath(__file__))


def read(marker):
    try:
        with open(marker, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return None


def served(told):
    """Whether nothing is to be done: the link leads there and the service is up."""
    here = os.path.realpath(told["link"]) == os.path.realpath(told["release"])
    state = subprocess.run(["systemctl", "is-active", "--quiet", told["unit"] + ".service"], check=False)
    return here and state.returncode == 0


def note(audit, told):
    name = os.path.basename(told["release"])
    words = {
        "event": "serve",
        "deployment": told["deployment"],
        "release": name,
        "why": "a bench was cut off",
    }
    with open(audit, "a", encoding="utf-8") as f:
        f.write(json.dumps(dict(words, time=round(time.time(), 3), who="eyas on this host")) + "\n")
        f.flush()
        os.fsync(f.fileno())


def put_back(told, audit):
    note(audit, told)
    argv = ["sh", os.path.join(FOLDER, "activate.sh"), told["release"], told["link"], told["unit"], ""]
    return subprocess.run(argv, check=False).returncode


def own(owner, told):
    what = "putting back release %s after a bench" % os.path.basename(told["release"])
    with open(owner + ".new", "w", encoding="utf-8") as f:
        json.dump({"who": "eyas on this host", "since": time.time(), "what": what}, f)
    os.replace(owner + ".new", owner)


def main(marker, lock, owner, work, audit):
    sys.dont_write_bytecode = True
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    told = read(marker)
    if told is None:
        return 0
    own(owner, told)
    try:
        if not end_leftovers(work):
            return 1
        if not served(told) and put_back(told, audit):
            print("eyas: release %s does not come back; trying again" % told["release"], flush=True)
            return 1
        print("eyas: a bench was cut off; release %s serves again" % told["release"], flush=True)
        os.unlink(marker)
    finally:
        os.unlink(owner)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
