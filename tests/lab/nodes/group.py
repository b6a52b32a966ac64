"""Two hosts that serve as one, with the stand-in engine: what is shown is the supervision, not an engine."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import yaml

from tests.lab.rollout.fleet import LOOSE, ROOT, Fleet
from tests.lab.rollout.running import Run

__all__ = ["HOSTS", "GroupFleet"]

HOSTS = ("gpu01", "gpu02")


class GroupFleet(Fleet):
    """A Fleet whose deployments span both hosts. Only rank 0's engine answers, so only it is asked."""

    #: Keys laid over every deployment.
    more: ClassVar[dict[str, Any]] = {}

    def deployment(self, version: str) -> Path:
        path = super().deployment(version)
        words = yaml.safe_load(path.read_text()) | {"tensor_parallel": 2, "nodes": 2} | self.more
        path.write_text(yaml.safe_dump(words))
        return path

    def provision(self, version: str, *words: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the JSON document, the log."""
        file = str(self.deployment(version))
        told = ("--host", ",".join(HOSTS), "--deployment", file, "--json", "--no-preflight", *words)
        got = self.run("provision", *told)
        return got.returncode, json.loads(got.stdout or "{}"), got.stderr

    def doctor(self) -> dict[str, Any]:
        got = self.run("doctor", "--host", ",".join(HOSTS), "--json")
        found: dict[str, Any] = json.loads(got.stdout)
        return found

    def sh(self, script: str, name: str, *, check: bool = True) -> str:
        return self.lab.host(name).run(["sh", "-c", script], check=check).stdout.strip()

    def states(self) -> dict[str, str]:
        """Systemd's word on each host that is on."""
        on = [h for h in HOSTS if self.lab.host(h).pid]
        return {h: self.sh("systemctl is-active eyas-fl.service", h, check=False) for h in on}

    def journal(self, name: str) -> str:
        return self.sh("journalctl -q --no-pager -b -u eyas-fl.service -n 60 -o short-iso", name, check=False)

    def waits(self, name: str, rank: int) -> bool:
        """Whether the host waits for ``rank`` now: it said so after the last time it lost it."""
        told = self.journal(name)
        return told.rfind(f"waiting for rank {rank} (") > told.rfind(f"the group lost rank {rank} (")

    def until(self, true: Callable[[], Any], *, within: float, what: str) -> float:
        """Seconds it took; the journals of both hosts when it does not come true."""
        began = time.monotonic()
        while not true():
            if time.monotonic() - began > within:
                told = "\n".join(f"--- {h}\n{self.journal(h)}" for h in self.states())
                raise AssertionError(f"not within {within} s: {what}\n{told}")
            time.sleep(0.25)
        return time.monotonic() - began

    def link(self, name: str) -> str:
        """The version whose release the host points at, whether or not it serves."""
        path = self.sh("grep -o '/etc/eyas-lab/[^.]*.fault' /var/lib/eyas/current/fl/release.json", name)
        return Path(path).stem

    def serves(self, version: str) -> bool:
        return self.states() == dict.fromkeys(HOSTS, "active") and self.served() == dict.fromkeys(
            HOSTS, version
        )

    def back(self, version: str, *, within: float = 60) -> float:
        return self.until(lambda: self.serves(version), within=within, what=f"{version} serves again")

    def gone(self, *, within: float) -> float:
        """Until no host's unit is active any more."""
        return self.until(
            lambda: "active" not in self.states().values(), within=within, what="all units down"
        )

    def engine(self, name: str) -> int:
        """The engine's main process: the supervisor's child."""
        main = self.sh("systemctl show -P MainPID eyas-fl.service", name)
        return int(self.sh(f"cat /proc/{main}/task/{main}/children", name).split()[0])

    def begin(self, task: str, version: str, *words: str) -> Run:
        """The command in a process of its own, to be killed or looked at while it runs."""
        log = self.home / f"{version}-{task}.log"
        file = str(self.deployment(version))
        argv = [sys.executable, "-c", "from tasks import main; main()", task, "--deployment", file, "--json"]
        with log.open("w") as stderr:
            p = subprocess.Popen(
                [*argv, *words, "--inventory", str(self.lab.inventory)],
                cwd=ROOT, env=self.env, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        return Run(p, log, self.home / "state" / "eyas" / "rollouts")

    def settings(self, version: str, **settings: Any) -> None:
        """How this version behaves on both hosts, which is quick but for what is told."""
        for name in HOSTS:
            self.fault(name, version, **{"start_s": 0, "tokens_per_s": 2000, **settings})

    def rollout_group(self, version: str, *words: str) -> subprocess.CompletedProcess[str]:
        file = str(self.deployment(version))
        told = ("--limit", "gpu", "--deployment", file, "--yes", "--json", *LOOSE, *words)
        return self.run("rollout", *told)
