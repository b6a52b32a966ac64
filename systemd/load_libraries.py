"""Prints the names, of those given, that the dynamic loader cannot load."""

import ctypes
import sys

for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError:
        print(name)
