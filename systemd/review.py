"""The review of one deployment, run by a timer on the host: the short bench, what differs, what restarted.

    review.py DEPLOYMENT STATE LOCK_FILE OWNER_FILE [TEXTFILE_FOLDER]

Writes STATE/review/DEPLOYMENT/latest.json with the release's own first proof beside it, adds a line to
history.jsonl (the last KEPT), leaves eyas_DEPLOYMENT.prom for node_exporter, and prints one line. It says
what it measured; whether that is a drop is decided by whoever reads it (`invoke doctor`).

Exit 0 also when it was skipped because an operator works here; 1 when the endpoint gave no answer.
"""

import fcntl
import json
import os
import pathlib
import subprocess
import sys
import time

import endpoint
import proof
import served

KEPT = 200
QUIET_S = 600
MAX_TOKENS, ROUNDS = 64, 3


def take(lock, owner):
    """The host's lock, or None: a bench or a rollout would be disturbed."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    told = {"who": "eyas on this host", "since": time.time(), "what": "review"}
    replace(owner, json.dumps(told))
    return fd


def replace(path, text):
    temp = os.path.join(os.path.dirname(path), "." + os.path.basename(path) + ".new")
    with open(temp, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.chmod(temp, 0o644)
    os.replace(temp, path)


def read(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def wait_quiet(release, patience):
    """True when nobody else's requests run; False when they never end. Unknown counts as quiet."""
    end = time.monotonic() + patience
    while (endpoint.counters(release).get("requests_running") or 0) > 0:
        if time.monotonic() > end:
            return False
        time.sleep(5)
    return True


def restarts(unit):
    got = subprocess.run(["systemctl", "show", "-P", "NRestarts", unit], stdout=subprocess.PIPE, check=False)
    text = got.stdout.decode().strip()
    return int(text) if text.isdigit() else None


def look(deployment, state):
    link = os.path.join(state, "current", deployment)
    folder = os.path.realpath(link)
    release = endpoint.Release(folder)
    told = {"schema": 1, "deployment": deployment, "release": os.path.basename(folder)}
    told["time"] = round(time.time(), 3)
    told["restarts"] = restarts("eyas-%s.service" % deployment)
    told["differences"], told["unseen"] = served.differences(
        release.data, pathlib.Path(folder), pathlib.Path("/etc/systemd/system"), False
    )
    try:
        told["busy"] = not wait_quiet(release, QUIET_S)
        told["now"] = proof.measure(release, MAX_TOKENS, ROUNDS)
        told["error"] = ""
    except endpoint.Down as e:
        told["busy"], told["now"], told["error"] = None, None, str(e)
    return told, read(os.path.join(folder, "proof.json"))


def add(path, told):
    """The last KEPT lines; a line that a crash cut short goes."""
    try:
        with open(path, encoding="utf-8") as f:
            lines = [x for x in f.read().splitlines() if x.startswith("{") and x.endswith("}")]
    except FileNotFoundError:
        lines = []
    lines.append(json.dumps(told))
    replace(path, "\n".join(lines[-KEPT:]) + "\n")


def metrics(told, before):
    """In the text form of Prometheus. A number that is not known has no line."""
    now, before = told["now"] or {}, before or {}
    labels = '{deployment="%s",release="%s"}' % (told["deployment"], told["release"])
    rows = [
        ("review_timestamp_seconds", "When the last review was made.", told["time"]),
        ("review_up", "Whether the endpoint answered the last review.", 0 if told["error"] else 1),
        ("review_busy", "Whether others' requests ran during the short bench.", told["busy"]),
        ("review_tokens_per_second", "Output tokens a second of one stream.", now.get("tokens_per_s")),
        ("review_ttft_seconds", "Median time to the first token.", _ms(now.get("ttft_ms"))),
        ("review_acceptance_ratio", "Accepted over drafted tokens.", now.get("acceptance_rate")),
        ("review_tokens_per_step", "Tokens a verification step.", now.get("acceptance_length")),
        ("baseline_tokens_per_second", "The same when the release was proven.", before.get("tokens_per_s")),
        ("baseline_acceptance_ratio", "The same when the release was proven.", before.get("acceptance_rate")),
        ("review_differences", "Kinds in which the host differs from its release.", len(told["differences"])),
        ("service_restarts", "Restarts of the service since its unit was loaded.", told["restarts"]),
    ]
    out = []
    for name, text, value in rows:
        if value is not None:
            out.append("# HELP eyas_%s %s\n# TYPE eyas_%s gauge" % (name, text, name))
            out.append("eyas_%s%s %s" % (name, labels, float(value)))
    return "\n".join(out) + "\n"


def _ms(value):
    return None if value is None else value / 1000


def line(told, before):
    if told["error"]:
        return "eyas review: %s gave no answer: %s" % (told["deployment"], told["error"])
    now, was = told["now"], (before or {}).get("tokens_per_s")
    speed = "%s tokens/s (%s when it was proven)" % (now["tokens_per_s"], was or "not known")
    rate = now.get("acceptance_rate")
    parts = [speed, "acceptance %s" % rate if rate is not None else "no drafts"]
    parts += ["others' requests ran"] if told["busy"] else []
    parts += ["differs in " + ", ".join(sorted(told["differences"]))] if told["differences"] else []
    return "eyas review: %s: %s" % (told["deployment"], ", ".join(parts))


def main(deployment, state, lock, owner, textfiles=""):
    sys.dont_write_bytecode = True
    held = take(lock, owner)
    if held is None:
        print("eyas review: skipped, somebody works on this host", flush=True)
        return 0
    try:
        told, before = look(deployment, state)
    finally:
        os.unlink(owner)
        os.close(held)
    folder = os.path.join(state, "review", deployment)
    replace(os.path.join(folder, "latest.json"), json.dumps({**told, "baseline": before}))
    kept = dict(told, now={k: v for k, v in (told["now"] or {}).items() if k not in ("outputs", "samples")})
    add(os.path.join(folder, "history.jsonl"), kept)
    if textfiles and os.path.isdir(textfiles):
        replace(os.path.join(textfiles, "eyas_%s.prom" % deployment), metrics(told, before))
    print(line(told, before), flush=True)
    return 1 if told["error"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
