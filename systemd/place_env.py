"""Put a proven environment in its place in one step, also where a service runs from the one before."""

import ctypes
import os
import shutil
import sys

_HERE, _EXCHANGE = -100, 2


def exchange(a, b):
    """Whether both names were swapped at once; not every file system can."""
    libc = ctypes.CDLL(None)
    return libc.renameat2(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0


def main(new, env):
    parent, name = os.path.split(env)
    gone = os.path.join(parent, "." + name + ".gone")
    shutil.rmtree(gone, ignore_errors=True)
    if not os.path.lexists(env):
        os.rename(new, env)
        return
    if exchange(new, env):
        os.rename(new, gone)
    else:
        os.rename(env, gone)
        os.rename(new, env)
    shutil.rmtree(gone)


if __name__ == "__main__":
    main(*sys.argv[1:])
