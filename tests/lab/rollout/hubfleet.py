"""Four hosts, a hub, an operator's folder, and a stand-in engine whose behaviour differs by release.

Each release reads its settings from a file of its own, so that a fault can come with the new release and be
gone with the former one.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.lab.engine.build import Standin, build_standin_wheelhouse
from tests.lab.hosts import Lab
from tests.lab.hub import Hub
from tests.lab.provision.stage import write_model
from tests.lab.rollout.running import Run

__all__ = ["HUB_MODEL", "LOOSE", "Fleet"]

ROOT = Path(__file__).resolve().parents[3]
#: Speeds of the stand-in on a shared machine say nothing, its models are no models; acceptance counts.
LOOSE = ("--no-preflight", "--ttft-tolerance", "5000", "--speed-tolerance", "99")
#: A start and a proof that take no time of their own.
QUICK = {"start_s": 0, "tokens_per_s": 2000}
#: So that a dead link is known in seconds.
ALIVE = "-o ServerAliveInterval=1 -o ServerAliveCountMax=3"
HUB_MODEL = 3 << 20


@dataclass
class Fleet:
    lab: Lab
    hub: Hub
    standin: Standin
    home: Path
    #: What came of the rollout that brought the fleet up, and what the hub had sent after it.
    first: tuple[int, dict[str, Any], str] = (1, {}, "")
    sent: dict[str, int] = field(default_factory=dict)
    runs: int = 0

    @classmethod
    @contextlib.contextmanager
    def open(cls, lab: Lab, home: Path) -> Iterator["Fleet"]:
        """All hosts serve release ``one``; weights and wheels come from the hub."""
        standin = build_standin_wheelhouse(client=True)
        models = home / "models"
        write_model(models / "eyas-lab/target", size=HUB_MODEL)
        write_model(models / "eyas-lab/head", num_hidden_layers=1)
        with Hub(models, bind=lab.network.gateway, cdn=lab.network.alias, wheels=(standin.dir,)) as hub:
            fleet = cls(lab, hub, standin, home)
            fleet.write_inventory()
            fleet.first = fleet.rollout("one", "--serial", "100%", "--canary", "0").wait()
            fleet.sent = {n: hub.sent(n) for n in ("target/.*safetensors", "head/.*safetensors", "/files/")}
            yield fleet

    @property
    def names(self) -> list[str]:
        return list(self.lab.hosts)

    @property
    def inventory(self) -> Path:
        return self.home / "hosts.yml"

    def write_inventory(self, **hosts: dict[str, str]) -> None:
        """The lab's, with the hub as package index; ``hosts`` changes variables of some."""
        tree = yaml.safe_load(self.lab.inventory.read_text())
        variables = tree["all"]["vars"]
        variables |= {"eyas_index_url": self.hub.index_url}
        variables["ansible_ssh_common_args"] += f" {ALIVE}"
        for name, changed in hosts.items():
            tree["all"]["children"]["gpu"]["hosts"][name] |= changed
        self.inventory.write_text(yaml.safe_dump(tree))

    # ---- what is wanted

    def deployment(self, version: str, weights: str = "target", **changes: Any) -> Path:
        """A file for the deployment ``fl``; each ``version`` is a release of its own."""
        words = {
            "engine": "vllm",
            "engine_version": "0.33.0",
            "lock": str(self.standin.lock.path),
            "target": {"repo": f"eyas-lab/{weights}"},
            "draft": {
                "method": "eagle3", "model": {"repo": "eyas-lab/head"}, "num_speculative_tokens": 3,
            },
            "served_model_name": "tiny",
            "max_model_len": 512,
            "env": {"EYAS_STANDIN_FILE": f"/etc/eyas-lab/{version}.fault"},
        }  # fmt: skip
        path = self.home / version / "fl.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump({**words, **changes}))
        return path

    def model(self, name: str, size: int = 1 << 16) -> str:
        """A model of its own in the hub, for ``deployment``'s ``weights``."""
        write_model(self.home / "models/eyas-lab" / name, size=size, fill=name.encode())
        return name

    def engine(self, host: str, version: str, **settings: Any) -> None:
        text = json.dumps({**QUICK, **settings})
        script = 'mkdir -p /etc/eyas-lab; cat >"$0.new"; chmod 644 "$0.new"; mv "$0.new" "$0"'
        self.lab.host(host).run(["sh", "-c", script, f"/etc/eyas-lab/{version}.fault"], stdin=text)

    # ---- the operator

    def start(self, task: str, *words: str, **env: str) -> Run:
        self.runs += 1
        state, log = env.get("XDG_STATE_HOME", str(self.home / "state")), self.home / f"{self.runs}.log"
        argv = [sys.executable, "-c", "from tasks import main; main()", task, *words]
        full = {**os.environ, "HF_ENDPOINT": self.hub.url, "XDG_STATE_HOME": state, "COLUMNS": "200", **env}
        with log.open("w") as stderr:
            p = subprocess.Popen(
                [*argv, "--inventory", str(self.inventory)],
                cwd=ROOT, env=full, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        return Run(p, log, Path(state) / "eyas/rollouts")

    def run(self, task: str, *words: str) -> tuple[int, dict[str, Any], str]:
        return self.start(task, *words, "--json").wait()

    def rollout(
        self,
        version: str,
        *words: str,
        limit: str = "gpu",
        weights: str = "target",
        engines: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Run:
        """``engines``: how the new release behaves on some hosts; ``changes``: of the deployment."""
        for name in self.names:
            self.engine(name, version, **(engines or {}).get(name, {}))
        file = str(self.deployment(version, weights, **changes))
        return self.start(
            "rollout",
            "--limit",
            limit,
            "--deployment",
            file,
            "--yes",
            "--json",
            *LOOSE,
            *words,
            **(env or {}),
        )

    def resume(self) -> tuple[int, dict[str, Any], str]:
        return self.run("rollout", "--resume")

    # ---- what is so

    def served(self, *names: str) -> dict[str, str]:
        """What each host really serves: the version of the release that answers, or why none does."""
        return {name: self._served(name) for name in names or self.names}

    def _served(self, name: str) -> str:
        """The settings file of the release the link names, once its service is active and it completes."""
        script = (
            "set -e; systemctl is-active --quiet eyas-fl; cd /var/lib/eyas/current/fl; "
            "python3 -B healthcheck.py >/dev/null; "
            'python3 -c \'import json; d = json.load(open("release.json")); '
            'print(d["env"]["EYAS_STANDIN_FILE"])\''
        )
        got = self.lab.host(name).run(["sh", "-c", script], check=False)
        return Path(got.stdout.strip()).stem if got.returncode == 0 else f"down: {got.stdout}{got.stderr}"

    def settles(self, allowed: set[str], *names: str, within: float = 60) -> dict[str, str]:
        """What is served once each of the hosts serves one of these versions, whoever is gone."""
        end = time.monotonic() + within
        while not set(found := self.served(*names).values()) <= allowed:
            assert time.monotonic() < end, found
            time.sleep(0.3)
        return self.served(*names)

    def keys_left(self, *names: str) -> str:
        """Lines and files of copy keys on the hosts."""
        script = "ls -d /run/eyas-copy.* 2>/dev/null; grep -rs ' copy-' /home/*/.ssh /root/.ssh"
        return "".join(
            self.lab.host(n).run(["sh", "-c", script], check=False).stdout for n in names or self.names
        )

    @contextlib.contextmanager
    def broken(self, host: str, kind: str, value: str = "") -> Iterator[None]:
        self.lab.fault(host, kind, value)
        try:
            yield
        finally:
            self.lab.heal(host, kind)

    def cut(self, host: str, seconds: float, kind: str = "link-down") -> Callable[[], None]:
        """For ``Run.meanwhile``: this fault for so long."""

        def act() -> None:
            with self.broken(host, kind):
                time.sleep(seconds)

        return act
