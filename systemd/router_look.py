"""What a router's host has: one JSON line.

Arguments: folder, unit, key file, package, folders of environments and of uv.
"""

import json
import os
import pathlib
import platform
import pwd
import subprocess
import sys

FILES = ("router.json", "haproxy.cfg", "router_ctl.py", "router_serve.py")


def text(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def show(unit):
    names = "ActiveState,UnitFileState,DropInPaths,NeedDaemonReload"
    argv = ["systemctl", "show", "--no-pager", "-p", names, "--", unit]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def package(name):
    argv = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "--", name]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return None
    state, _, version = done.stdout.partition(" ")
    return version if state == "installed" else None


def user(name):
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def mode(path):
    try:
        return "%04o" % (os.stat(path).st_mode & 0o7777)
    except FileNotFoundError:
        return None


def main(folder, unit, key, name, envs, uv):
    return {
        "files": {f: text(os.path.join(folder, f)) for f in FILES},
        "unit_text": text("/etc/systemd/system/" + unit),
        "unit": show(unit),
        "key_mode": mode(key) if key else None,
        "package": package(name),
        "user": user("eyas") is not None and os.path.isdir("/var/lib/eyas/lock"),
        "envs": [p.parent.name for p in pathlib.Path(envs).glob("*/eyas-proof.json")],
        "uv": [p.parent.name for p in pathlib.Path(uv).glob("*/uv")],
        "python": platform.python_version(),
        "glibc": platform.libc_ver()[1],
    }


if __name__ == "__main__":
    print("EYAS-ROUTER " + json.dumps(main(*sys.argv[1:])))
