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

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def keep(home: Path) -> int:
    """Returns how the last boot ended: minus the signal that ended the host's PID 1."""
    host = json.loads((home / "host.json").read_text())
    for group in host["cgroups"]:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    kernel_log = _kernel_log(home / "kmsg")
    while True:
        _drain(kernel_log)
        code = subprocess.run(_boot(host, home), cwd=REPOSITORY, check=False).returncode
        print(f"[keeper] {time.strftime('%FT%TZ', time.gmtime())} host ended: {code}", flush=True)
        # reboot(2) in a PID namespace ends its PID 1 by SIGHUP; power off by SIGINT.
        if code not in {-signal.SIGHUP, 128 + signal.SIGHUP}:
            return code


def _kernel_log(fifo: Path) -> int:
    """The host's /dev/kmsg: its journald takes each record it reads there as the kernel's.

    Held open for reading and writing, or every program of the host that logs there would wait for a reader.
    """
    if not fifo.exists():
        os.mkfifo(fifo, 0o600)
    return os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _drain(kernel_log: int) -> None:
    with suppress(BlockingIOError):
        while os.read(kernel_log, 65536):
            pass


def _boot(host: dict[str, str], home: Path) -> list[str]:
    return [
        *("nsenter", f"--net=/run/netns/{host['netns']}"),
        *("unshare", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child"),
        *(sys.executable, "-m", "tests.lab.boot", str(home)),
    ]


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1])))
