"""`invoke lab ...`: each action is one function here; tasks.py only parses."""

import json
import os
import sys
import time
from typing import Any

from inventory.errors import UsageError
from tests.lab.hosts import Lab, lab_names, say_to_stderr
from tests.lab.needs import require_lab

__all__ = ["down", "run", "ssh", "status", "up"]

Options = dict[str, Any]


def run(action: str, host: str, what: str, **options: Any) -> int:
    """Dispatch one `invoke lab ACTION [HOST] [WHAT] --options`; returns the exit code."""
    actions = {"up": up, "status": status, "down": down, "ssh": ssh}
    if action not in actions:
        raise UsageError(
            f"no such lab action {action!r}" if action else "which lab action?",
            hint=f"invoke lab {' | '.join(actions)}, e.g. invoke lab up --hosts 2",
        )
    require_lab()
    return actions[action](host, what, options)


def up(host: str, what: str, options: Options) -> int:
    """Make or extend the lab: HOST alone, or --hosts N as gpu01, gpu02, ..."""
    began = time.monotonic()
    names = [host] if host else [f"gpu{i:02}" for i in range(1, options["hosts"] + 1)]
    lab = Lab.up(
        names,
        name=options["lab"],
        release=options["release"],
        yes=options["yes"],
        **{k: options[k] for k in ("profile", "os", "user", "sudo")},
        size=parse_size(options["size"]),
        memory=parse_size(options["memory"]),
    )
    say_to_stderr(f"{len(names)} up in {time.monotonic() - began:.1f} s")
    return _print_status([lab], options["json"])


def status(host: str, what: str, options: Options) -> int:
    """Every host of the named lab (or of all labs) and whether it answers."""
    names = [options["lab"]] if options["lab"] != "default" else lab_names()
    return _print_status([Lab.load(n) for n in names], options["json"])


def down(host: str, what: str, options: Options) -> int:
    """Remove the lab and everything it made."""
    names = lab_names() if options["all"] else [options["lab"]]
    for name in names:
        if name in lab_names():
            Lab.load(name).down()
            say_to_stderr(f"lab {name} is gone")
        else:
            say_to_stderr(f"no lab {name}: nothing to do")
    return 0


def ssh(host: str, what: str, options: Options) -> int:
    """Become ssh to HOST; WHAT is a command line for it."""
    if not host:
        raise UsageError("ssh to which host?", hint="invoke lab ssh gpu01")
    argv = ["ssh", *Lab.load(options["lab"]).ssh_args(host), *([what] if what else [])]
    os.execvp("ssh", argv)


def parse_size(text: str) -> int | None:
    """``96M`` or ``2G`` in bytes; empty is None; UsageError otherwise."""
    if not text:
        return None
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1].upper(), 0)
    if not unit or not text[:-1].isdigit() or int(text[:-1]) == 0:
        raise UsageError(f"bad size {text!r}", hint="a whole number with K, M or G, e.g. 512M")
    return int(text[:-1]) * unit


def _print_status(labs: list[Lab], as_json: bool) -> int:
    rows = [{"lab": lab.name, "inventory": str(lab.inventory), "hosts": _rows(lab)} for lab in labs]
    if as_json:
        print(json.dumps({"schema": 1, "labs": rows}))
        return 0
    for lab, row in zip(labs, rows, strict=True):
        print(f"lab {lab.name}: operator {lab.network.gateway}, inventory {row['inventory']}")
        for h in _rows(lab):
            print(f"  {h['name']:12} {h['address']:12} {h['state']:7} {h['profile']}")
    if not labs:
        print("no lab; make one with: invoke lab up --hosts 2", file=sys.stderr)
    return 0


def _rows(lab: Lab) -> list[dict[str, Any]]:
    return [
        {
            "name": h.name,
            "address": h.address,
            "state": h.state(),
            "user": h.spec.user,
            "profile": h.spec.profile,
        }
        for h in lab.hosts.values()
    ]
