"""Wait until the served release has no request in flight: link of the release, patience in seconds.

Prints one JSON line; exit 0: idle, 1: requests are still running, 2: nobody could look.
"""

import json
import os
import sys
import time


def main(link, patience):
    sys.path.insert(0, os.path.realpath(link))
    from endpoint import Down, Release, counters

    release, end = Release(link), time.monotonic() + float(patience)
    while True:
        try:
            seen = counters(release)
        except Down as e:
            print(json.dumps({"error": str(e)}))
            return 2
        known = [seen[r] for r in ("requests_running", "requests_waiting") if seen.get(r) is not None]
        if not known:
            print(json.dumps({"error": "the engine counts no requests"}))
            return 2
        if not sum(known):
            print(json.dumps({"idle": True}))
            return 0
        if time.monotonic() > end:
            print(json.dumps({"idle": False, "requests": sum(known)}))
            return 1
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
