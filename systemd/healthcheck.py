"""The health timer's program: a real completion, and with speculation a look that drafts are still made.

Prints one JSON line (the journal keeps it) and exits 1 when the endpoint does not do its job. Its argument,
if any, is how many seconds the completion may take.
"""

import json
import sys
import time

from endpoint import Down, Release, completion, counters, health

PROMPT = "Count on: one two three four five six seven eight nine ten eleven twelve one two three four"


def check(release, patience):
    if release.follows:
        health(release)
        return {"ok": True, "rank": release.data["group"]["rank"]}
    before = counters(release)
    start = time.monotonic()
    _, usage = completion(release, PROMPT, max_tokens=16, timeout=patience)
    seconds = time.monotonic() - start
    after = counters(release)
    result = {"ok": True, "seconds": round(seconds, 3), "tokens": usage["completion_tokens"]}
    if release.data["draft"]["method"] == "none":
        return result
    role = "spec_draft_tokens" if "spec_draft_tokens" in after else "spec_verify_calls"
    drafted = (after.get(role) or 0) - (before.get(role) or 0)
    result[role] = drafted
    if drafted <= 0:
        result.update(ok=False, why="speculation is configured but no draft token was made")
    return result


def main():
    try:
        release = Release()
        result = check(release, float(sys.argv[1]) if len(sys.argv) > 1 else release.timeouts["probe_s"] * 3)
    except Down as e:
        result = {"ok": False, "why": str(e)}
    print(json.dumps(dict(result, eyas="health")), flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
