"""`invoke lab ...`: each action is one function here; tasks.py only parses."""

import json
import os
import sys
import time
from typing import Any

from inventory.errors import UsageError
from tests.lab.faults import FAULTS, active
from tests.lab.hosts import Lab, foreign_labs, lab_names, say_to_stderr
from tests.lab.needs import require_lab
from tests.lab.profiles import fault_names, parse
from tests.lab.sizes import parse_size

__all__ = ["run"]

Options = dict[str, Any]


def run(action: str, host: str, what: str, **options: Any) -> int:
    """Dispatch one `invoke lab ACTION [HOST] [WHAT] --options`; returns the exit code."""
    actions = {"up": up, "status": status, "down": down, "ssh": ssh, "run": run_inside}
    actions |= {"fault": fault, "heal": heal}
    if action not in actions:
        raise UsageError(
            f"no such lab action {action!r}" if action else "which lab action?",
            hint=f"invoke lab {' | '.join(actions)}, e.g. invoke lab up --hosts 2",
        )
    options |= {name: parse_size(options[name]) for name in ("size", "memory")}
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
        **{k: options[k] for k in ("profile", "os", "user", "sudo", "size", "memory", "light")},
    )
    say_to_stderr(f"{len(names)} up in {time.monotonic() - began:.1f} s")
    return _print_status([lab], options["json"])


def status(host: str, what: str, options: Options) -> int:
    """Every host of the named lab (or of all labs) and whether it answers."""
    names = [options["lab"]] if options["lab"] != "default" else lab_names()
    return _print_status([Lab.load(n) for n in names], options["json"])


def down(host: str, what: str, options: Options) -> int:
    """Remove the lab and everything it made."""
    for name in lab_names() if options["all"] else [options["lab"]]:
        try:
            lab = Lab.find(name)
        except UsageError:
            say_to_stderr(f"no lab {name}: nothing to do")
            continue
        lab.down()
        say_to_stderr(f"lab {name} is gone")
    return 0


def ssh(host: str, what: str, options: Options) -> int:
    """Become ssh to HOST; WHAT is a command line for it."""
    argv = ["ssh", *Lab.load(options["lab"]).ssh_args(_given(host, "ssh")), *([what] if what else [])]
    os.execvp("ssh", argv)


def fault(host: str, what: str, options: Options) -> int:
    """Make WHAT go wrong on HOST; without WHAT, list what can."""
    if not what:
        known = {name: f.says.format(value=f.default) for name, f in FAULTS.items()}
        known |= {f"gpu:{name}": parse("h200x2+" + name).says[-1] for name in fault_names()}
        if options["json"]:
            print(json.dumps({"schema": 1, "faults": known}))
        else:
            print("\n".join(f"{name:20} {says}".rstrip() for name, says in known.items()))
        return 0
    say_to_stderr(Lab.load(options["lab"]).fault(_given(host, "fault"), what, options["value"]))
    return 0


def heal(host: str, what: str, options: Options) -> int:
    """Undo WHAT on HOST, or everything."""
    undone = Lab.load(options["lab"]).heal(_given(host, "heal"), what)
    say_to_stderr(f"{host}: undone: {', '.join(undone) or 'nothing was wrong'}")
    return 0


def run_inside(host: str, what: str, options: Options) -> int:
    """Run the command line WHAT as root on HOST, whatever its network and sshd are doing."""
    if not what:
        raise UsageError("run what?", hint="invoke lab run gpu01 'systemctl --failed'")
    done = (
        Lab.load(options["lab"]).host(_given(host, "run")).run(["sh", "-c", what], check=False, timeout=600)
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def _given(host: str, action: str) -> str:
    if not host:
        raise UsageError(f"{action}: which host?", hint=f"invoke lab {action} gpu01 ...")
    return host


def _print_status(labs: list[Lab], as_json: bool) -> int:
    rows: list[dict[str, Any]] = [
        {"lab": lab.name, "inventory": str(lab.inventory), "hosts": _rows(lab)} for lab in labs
    ]
    if as_json:
        print(json.dumps({"schema": 1, "labs": rows}))
        return 0
    for lab, row in zip(labs, rows, strict=True):
        print(f"lab {lab.name}: operator {lab.network.gateway}, inventory {row['inventory']}")
        for h in row["hosts"]:
            wrong = " ".join(f"{k}={v}" if v else k for k, v in h["faults"].items())
            print(f"  {h['name']:12} {h['address']:12} {h['state']:7} {h['profile']:24} {wrong}".rstrip())
    for name in sorted(foreign_labs()):
        say_to_stderr(f"lab {name}: runs with its state elsewhere, or lost; invoke lab down --lab {name}")
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
            "faults": active(h),
        }
        for h in lab.hosts.values()
    ]
