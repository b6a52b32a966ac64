"""What is served on this host, compared with what its release says. Reads only; prints one JSON object.

    served.py STATE UNITS CREDENTIALS [--deep]

Per deployment: its release, its counters now, and how files, processes, packages and weights differ from it.
With --deep every weight file is hashed; without, sizes are compared.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import re
import sys

MARK = ".eyas-verified.json"
CHUNK = 1 << 22


def differences(release, folder, unit_folder, deep):
    """Sentences, by kind. A kind nobody could look at is a sentence in "unseen"."""
    found, unseen = {}, {}
    looks = (
        ("unit files", lambda: units(folder, unit_folder)),
        ("argv", lambda: process(release)[0]),
        ("environment", lambda: process(release)[1]),
        ("limits", lambda: process(release)[2]),
        ("packages", lambda: packages(release)),
        ("weights", lambda: weights(release, deep)),
    )
    for kind, look in looks:
        try:
            told = look()
        except (OSError, ValueError, KeyError, IndexError, TypeError) as e:
            unseen[kind] = "%s: %s" % (type(e).__name__, e)
        else:
            if told:
                found[kind] = told
    return found, unseen


def units(folder, unit_folder):
    out = []
    for ours in sorted(folder.glob("*.service")) + sorted(folder.glob("*.timer")):
        live = unit_folder / ours.name
        if not live.exists():
            out.append("%s is missing" % live)
        elif live.read_bytes() != ours.read_bytes():
            out.append("%s was edited" % live)
        drop = unit_folder / (ours.name + ".d")
        if drop.is_dir() and any(drop.iterdir()):
            out.append("%s adds %s" % (drop, ", ".join(sorted(p.name for p in drop.iterdir()))))
    return out


def process(release):
    """(argv, environment, limits) of the engine against the release; the engine is the supervisor's child."""
    pid = child_of(main_pid("eyas-%s.service" % release["deployment"]))
    argv = pathlib.Path("/proc/%d/cmdline" % pid).read_bytes().split(b"\0")[:-1]
    live = [a.decode("utf-8", "replace") for a in argv]
    want = release["argv"]
    wrong = []
    # A script's argv begins with its interpreter.
    if live[-len(want) :] != want and live[-len(want) + 1 :] != want[1:]:
        wrong = ["the engine runs as: " + " ".join(live)[:400]]
    told = pathlib.Path("/proc/%d/environ" % pid).read_bytes().split(b"\0")
    env = dict(e.decode("utf-8", "replace").split("=", 1) for e in told if b"=" in e)
    differ = sorted(k for k, v in release["env"].items() if v != "" and env.get(k) != v)
    return wrong, (["not as in the release: " + ", ".join(differ)] if differ else []), limits(release, pid)


def limits(release, pid):
    """The unit's own limits against those the process really has.

    A host whose init may not raise limits (a container) gives what it has itself: that is how the host is,
    and no drift.
    """
    names = {
        "LimitNOFILE": "Max open files",
        "LimitMEMLOCK": "Max locked memory",
        "LimitCORE": "Max core file size",
    }
    unit = pathlib.Path("/etc/systemd/system/eyas-%s.service" % release["deployment"]).read_text()
    have, most = (pathlib.Path("/proc/%s/limits" % p).read_text() for p in (pid, 1))
    out = []
    for name, title in names.items():
        wanted = re.search(r"^%s=(\S+)" % name, unit, re.MULTILINE)
        real, ceiling = (re.search(r"^%s\s+(\S+)\s+(\S+)" % title, t, re.MULTILINE) for t in (have, most))
        if not wanted or not real or wanted.group(1).replace("infinity", "unlimited") == real.group(1):
            continue
        if not (bound_init() and ceiling and real.group(2) == ceiling.group(2)):
            out.append("%s is %s, the unit says %s" % (title.lower(), real.group(1), wanted.group(1)))
    return out


def bound_init():
    """Whether the host's first process lacks CAP_SYS_RESOURCE (bit 24)."""
    status = pathlib.Path("/proc/1/status").read_text()
    found = re.search(r"^CapEff:\s+([0-9a-f]+)", status, re.MULTILINE)
    return bool(found) and not int(found.group(1), 16) & (1 << 24)


def main_pid(unit):
    """The first process of the unit's group that is our supervisor."""
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (
                    b"supervisor.py" in (folder / "cmdline").read_bytes()
                    and unit in (folder / "cgroup").read_text()
                ):
                    return int(folder.name)
            except OSError:
                continue
    raise ValueError("%s does not run" % unit)


def child_of(pid):
    children = pathlib.Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()
    if not children:
        raise ValueError("the engine is not started")
    return int(children[0])


def packages(release):
    """Installed versions against those the environment was proven with."""
    env = pathlib.Path(release["argv"][0]).parent.parent
    with open(env / "eyas-proof.json", encoding="utf-8") as f:
        want = json.load(f)["packages"]
    have = {}
    for info in env.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = info.name[: -len(".dist-info")].rpartition("-")
        have[name.lower().replace("_", "-").replace(".", "-")] = version
    out = [
        "%s %s instead of %s" % (n, have.get(n, "is missing"), v) for n, v in want.items() if have.get(n) != v
    ]
    return out + ["%s %s was added" % (n, v) for n, v in have.items() if n not in want]


def weights(release, deep):
    out = []
    for weight in release["weights"].values():
        folder = pathlib.Path(weight["path"])
        if not (folder / MARK).exists():
            out.append("%s is not complete" % folder)
            continue
        with open(folder / MARK, encoding="utf-8") as f:
            files = json.load(f)["files"]
        out += [w for w in (wrong(folder, want, deep) for want in files) if w]
    return out


def wrong(folder, want, deep):
    path = folder / want["path"]
    if not path.exists():
        return "%s is missing" % path
    if path.stat().st_size != want["size"]:
        return "%s has %d bytes instead of %d" % (path, path.stat().st_size, want["size"])
    if deep and want.get("sha256"):
        digest = hashlib.sha256()
        with open(path, "rb") as f:
            while data := f.read(CHUNK):
                digest.update(data)
        if digest.hexdigest() != want["sha256"]:
            return "%s has other content" % path
    return ""


def numbers(folder):
    """The engine's counters by role, or why there are none."""
    spec = importlib.util.spec_from_file_location("endpoint", folder / "endpoint.py")
    endpoint = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(endpoint)
    try:
        release = endpoint.Release(folder)
        endpoint.health(release)
        return endpoint.counters(release), ""
    except endpoint.Down as e:
        return {}, str(e)


def look(link, unit_folder, credentials, deep):
    folder = pathlib.Path(os.path.realpath(link))
    try:
        with open(folder / "release.json", encoding="utf-8") as f:
            release = json.load(f)
    except (OSError, ValueError) as e:
        return {"release": folder.name, "error": str(e)}
    os.environ["EYAS_CREDENTIALS"] = os.path.join(credentials, release["deployment"])
    counters, down = numbers(folder)
    found, unseen = differences(release, folder, pathlib.Path(unit_folder), deep)
    return {
        "release": folder.name,
        "engine": "%s %s" % (release["engine"], release["engine_version"]),
        "group": release.get("group"),
        "counters": counters,
        "down": down,
        "differences": found,
        "unseen": unseen,
    }


def main(state, unit_folder, credentials, *flags):
    sys.dont_write_bytecode = True
    current = pathlib.Path(state) / "current"
    links = sorted(p for p in current.iterdir() if p.is_symlink()) if current.is_dir() else []
    found = {p.name: look(p, unit_folder, credentials, "--deep" in flags) for p in links}
    print("EYAS-SERVED " + json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
