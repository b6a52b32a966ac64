"""Remove what nobody serves: a JSON list of paths on stdin. The host has the last word.

A path is refused when it is no direct part of eyas's own folders, when a current link leads to it or to a
release that needs it, or when any process runs from it or holds a file of it open or mapped.
Prints JSON lines {"removed"|"refused": path, ...}.
"""

import json
import os
import pathlib
import re
import shutil
import sys


def served(state):
    """Folders that a current link, or its release, leads to."""
    found = set()
    current = pathlib.Path(state) / "current"
    for link in current.iterdir() if current.is_dir() else ():
        release = os.path.realpath(link)
        found.add(release)
        with open(os.path.join(release, "release.json"), encoding="utf-8") as f:
            told = json.load(f)
        found.add(os.path.dirname(os.path.dirname(told["argv"][0])))
        found.update(w["path"] for w in told["weights"].values())
    return found


def in_use():
    """Every path below our folders that a process's command, executable, maps or open files name."""
    ours = re.compile(rb"/(?:opt|var/lib)/eyas/[^\0\s]+")
    found = set()
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        for name in ("cmdline", "maps"):
            try:
                found.update(os.fsdecode(p) for p in ours.findall((folder / name).read_bytes()))
            except OSError:
                continue
        for link in ["exe", "cwd"] + ["fd/" + n for n in listed(folder / "fd")]:
            try:
                found.add(os.readlink(folder / link))
            except OSError:
                continue
    return found


def listed(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


ALLOWED = (
    re.compile(r"/opt/eyas/(envs|wheelhouse|uv)/[^/]+"),
    re.compile(r"/var/lib/eyas/releases/[^/]+"),
    re.compile(r"/var/lib/eyas/weights/[^/]+/[^/]+"),
)


def why_not(path, keep, busy):
    if ".." in path or not any(p.fullmatch(path) for p in ALLOWED) or os.path.islink(path):
        return "it is no folder eyas made"
    if path in keep:
        return "it is served"
    if any(p == path or p.startswith(path + "/") for p in busy):
        return "a process uses it"
    return ""


def size(path):
    total = 0
    for here, _, names in os.walk(path):
        total += sum(os.lstat(os.path.join(here, n)).st_size for n in names)
    return total


def main(state):
    keep, busy = served(state), in_use()
    for parent in (
        "/opt/eyas/envs",
        state + "/releases",
        *map(str, pathlib.Path(state, "weights").glob("*")),
    ):
        for left in pathlib.Path(parent).glob(".*"):  # of a run that was cut off
            if left.suffix in {".gone", ".new"}:
                shutil.rmtree(left)
    for path in json.load(sys.stdin):
        why = why_not(path, keep, busy)
        if why:
            print(json.dumps({"refused": path, "why": why}), flush=True)
        elif os.path.isdir(path):
            freed = size(path)
            # First out of sight, so that a half-removed folder is never taken for a whole one.
            gone = os.path.join(os.path.dirname(path), "." + os.path.basename(path) + ".gone")
            os.rename(path, gone)
            shutil.rmtree(gone)
            print(json.dumps({"removed": path, "bytes": freed}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
