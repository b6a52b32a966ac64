"""What a diagnosis reads of our units besides the probe, in one round trip: journal, unit text, endpoint.

Runs on the GPU box (`python3 -I - JSON` with this text on standard input) and nothing but the standard
library. Prints a marker line and one JSON document; what could not be read is ``{"missing": why}``. The API
key is read here and sent to loopback alone; it is never printed.
"""

import concurrent.futures
import glob
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

MARKER = "@eyas-look"
UNITS, STATE, ETC = "/etc/systemd/system", "/var/lib/eyas", "/etc/eyas"
HTTP_S = 1.0
COMMAND_S = 8
LARGEST = 8 << 20


def missing(why):
    return {"missing": str(why)[:300]}


def attempt(look, *args):
    try:
        return look(*args)
    except Exception as e:  # noqa: BLE001 - one thing that can't be read hides no other
        return missing("%s: %s" % (type(e).__name__, e))


def run(*argv):
    """A command's output, its last LARGEST bytes."""
    done = subprocess.run(argv, check=False, capture_output=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL)
    text = done.stdout[-LARGEST:].decode("utf-8", "replace")
    if done.returncode and not text:
        return missing("%s: %s" % (argv[0], done.stderr[-200:].decode("utf-8", "replace").strip()))
    return text


def journal(unit, lines):
    """Last lines of this boot; of an older boot when this one has none."""
    argv = ("journalctl", "-q", "--no-pager", "-o", "short-iso", "-n", str(lines), "-u", unit)
    text = run(*argv, "-b")
    return text or run(*argv) or missing("the journal has no line of %s" % unit)


def kernel(lines):
    text = run("journalctl", "-q", "-k", "-b", "--no-pager", "-o", "short-iso", "-n", str(lines))
    return text or run("dmesg") or missing("the kernel log is empty here")


def small(path, most=1 << 20):
    with open(path, encoding="utf-8") as f:
        return json.loads(f.read(most))


def release(name):
    """Of what is pointed at; else the newest made for this deployment."""
    current = "%s/current/%s/release.json" % (STATE, name)
    if os.path.exists(current):
        return dict(small(current), served=True)
    made = sorted(glob.glob(STATE + "/releases/*/release.json"), key=os.path.getmtime, reverse=True)
    for path in made:
        told = attempt(small, path)
        if told.get("deployment") == name:
            return dict(told, served=False)
    return missing("no release of %s on this host" % name)


def key(name):
    try:
        with open("%s/credentials/%s/api-key" % (ETC, name), encoding="utf-8") as f:
            return f.read().strip()
    except FileNotFoundError:
        return ""


def get(url, name):
    """Status and text; a refused connection is an answer too (there is none)."""
    secret = key(name)
    headers = {"Authorization": "Bearer " + secret} if secret else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=HTTP_S) as r:
            return {"status": r.status, "text": r.read(4 << 20).decode("utf-8", "replace")}
    except urllib.error.HTTPError as e:
        with e:
            return {"status": e.code, "text": e.read(400).decode("utf-8", "replace")}
    except (OSError, ValueError) as e:
        return missing("%s: %s" % (url, getattr(e, "reason", e)))


def configs(told):
    weights = told.get("weights") or {}
    return {role: attempt(small, w["path"] + "/config.json") for role, w in weights.items()}


def unit(file, lines, pool):
    name = file[len("eyas-") : -len(".service")]
    asked = {
        "journal": pool.submit(attempt, journal, file, lines),
        "unit": pool.submit(attempt, run, "systemctl", "cat", "--no-pager", file),
    }
    told = attempt(release, name)
    url = (told.get("endpoint") or {}).get("url")
    for path in ("health", "metrics") if url else ():
        asked[path] = pool.submit(attempt, get, url + "/" + path, name)
    found = {what: future.result() for what, future in asked.items()}
    return dict(found, release=told, configs=configs(told))


def of_ray(file, every):
    """The Ray head of another unit of ours, not a deployment whose name ends so."""
    return file.endswith("-ray.service") and file[: -len("-ray.service")] + ".service" in every


def main():
    params = json.loads(sys.argv[1])
    every = sorted(f for f in os.listdir(UNITS) if f.startswith("eyas-") and f.endswith(".service"))
    ours = [f for f in every if not f.endswith("-health.service") and not of_ray(f, every)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        log = pool.submit(attempt, kernel, params["lines"])
        units = {f: attempt(unit, f, params["lines"], pool) for f in params.get("units") or ours}
        body = json.dumps({"units": units, "kernel": log.result()})
    sys.stdout.write("\n%s %d\n%s\n" % (MARKER, len(body), body))


if __name__ == "__main__":
    main()
