"""The power supply of one lab host: boots it, boots it again when it reboots, stays while it runs.

Run as ``python -m tests.lab.keeper HOST_DIR``; reads ``host.json`` there. It lives in the host's control
groups, so whatever the host starts does too.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.lab import cgroups, kernel_log

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PYTHON = (sys.executable, "-S", "-E")  # the standard library and, from REPOSITORY, ours: half the start-up


def keep(home: Path) -> int:
    """Returns how the last boot ended: minus the signal that ended the host's PID 1."""
    host = json.loads((home / "host.json").read_text())
    cgroups.enter(json.loads((home / "cgroups.json").read_text()), "keeper")
    if host["light"]:  # it never boots again, so there is nothing to stay for
        argv = _boot(host, home)
        os.execvp(argv[0], argv)
    pipe = kernel_log.open_pipe(home / "kmsg")  # held open for the host's life
    while True:
        kernel_log.drain(pipe)
        for name in ("init.pid", "kernel.seq"):
            (home / name).unlink(missing_ok=True)
        with subprocess.Popen(_boot(host, home), cwd=REPOSITORY) as booted:
            _log_of_boot(home, booted)
            code = booted.wait()
        print(f"[keeper] {time.strftime('%FT%TZ', time.gmtime())} host ended: {code}", flush=True)
        # reboot(2) in a PID namespace ends its PID 1 by SIGHUP; power off by SIGINT.
        if code not in {-signal.SIGHUP, 128 + signal.SIGHUP}:
            return code


def _log_of_boot(home: Path, booted: subprocess.Popen[bytes]) -> None:
    """Once the host's journald listens, what its kernel said while it booted."""
    while booted.poll() is None:
        with suppress(OSError, ValueError):
            pid = int((home / "init.pid").read_text())
            if Path(f"/proc/{pid}/root/run/systemd/journal/kernel-seqnum").exists():
                kernel_log.say(home, json.loads((home / "sim/kernel.json").read_text()))
                return
        time.sleep(0.05)


def _boot(host: dict[str, Any], home: Path) -> list[str]:
    return [
        *("nsenter", f"--net=/run/netns/{host['netns']}"),
        *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"),
        *PYTHON,
        *("-m", "tests.lab.boot", str(home)),
    ]


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1])))
