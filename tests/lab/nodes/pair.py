"""Two lab hosts that share one model, served by the real engine's CPU build; and an operator.

The engine is installed once, by `provision` on gpu01, and kept in the cache; gpu02, and gpu01 the next time,
get a copy of that folder, as an image would bring it. Each host's engine is bound to a core of its own.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.doctor.model import Report
from inventory.hosts import load_inventory
from inventory.model import Deployment, Draft, Host, ModelRef
from provision import ssh
from provision.converge import HostReport, Options, provision_host
from provision.diagnosis import diagnose_host, reported
from provision.journal import Journal
from provision.nodes.converge import provision_group
from provision.nodes.roster import groups_of
from provision.sources import Sources
from tests.lab.assets.cache import cache_root
from tests.lab.assets.models import OWNER, build_models
from tests.lab.assets.wheelhouse import build_wheelhouse
from tests.lab.hosts import Lab
from tests.lab.hub import Hub

__all__ = ["HOSTS", "Pair"]

HOSTS = ("gpu01", "gpu02")
UNIT = "eyas-chat.service"


@dataclass
class Pair:
    lab: Lab
    folder: Path
    sources: Sources
    said: list[str] = field(default_factory=list)
    #: Greedy output of the target on one host, without speculation.
    alone_said: Any = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, lab: Lab, folder: Path) -> Iterator["Pair"]:
        wheels, models = build_wheelhouse(), build_models()
        with Hub(models.root, bind=lab.network.gateway, cdn=lab.network.alias) as hub:
            yield cls(lab, folder, Sources(endpoint=hub.url, wheelhouse=wheels.dir))

    # ---- what is wanted

    @staticmethod
    def deployment(head: str | None = "tiny-llama-eagle3", **changes: Any) -> Deployment:
        draft = Draft()
        if head:
            draft = Draft(method="eagle3", model=ModelRef(repo=f"{OWNER}/{head}"), num_speculative_tokens=3)
        base: dict[str, Any] = {
            "name": "chat",
            "engine": "vllm",
            "engine_version": "0.32.0",
            "device": "cpu",
            "target": ModelRef(repo=f"{OWNER}/tiny-llama"),
            "draft": draft,
            "served_model_name": "chat",
            "dtype": "float32",
            "max_model_len": 512,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "kv_cache_memory_bytes": 64 << 20,
            "wheels_from": "push",
        }
        return Deployment(**{**base, **changes})

    def hosts(self) -> list[Host]:
        return load_inventory(self.lab.inventory).select(",".join(HOSTS))

    # ---- the operator

    def options(self, **words: Any) -> Options:
        return Options(sources=self.sources, journal=Journal(self.folder / "journal.jsonl"), **words)

    def serve_alone(self) -> None:
        """The target on gpu01, as one host serves it; what it says is kept."""
        d = self.deployment(None)
        report = provision_host(self.hosts()[0], d, self._connect, self.options(), self.said.append)
        assert report.status in {"ok", "changed"}, report.error
        self.alone_said = self.proof()["outputs"]

    def together(self, d: Deployment, **words: Any) -> list[HostReport]:
        cores = {h: {**d.env, "VLLM_CPU_OMP_THREADS_BIND": str(n)} for n, h in enumerate(HOSTS)}
        wanted = {h: d.model_copy(update={"env": env}) for h, env in cores.items()}
        _, (group,) = groups_of(self.hosts(), wanted)

        def say_for(name: str) -> Any:
            return lambda text: self.said.append(f"{name} {text}")

        return provision_group(group, self._connect, self.options(**words), say_for)

    @staticmethod
    def _connect(host: Host) -> ssh.SshShell:
        return ssh.connect(host, ssh.SshOptions())

    # ---- the engine, installed once

    @property
    def _kept(self) -> Path:
        assert self.sources.wheelhouse
        return cache_root() / "lab" / f"engine-{self.sources.wheelhouse.name}.tar"

    def unpack_kept(self, name: str) -> None:
        """What an earlier run installed, where there is such; `provision` takes it for what it is."""
        if self._kept.exists():
            argv = self.lab.host(name).enter_argv(["tar", "-C", "/opt", "-xf", "-"])
            with self._kept.open("rb") as f:
                subprocess.run(argv, stdin=f, check=True)

    def keep(self) -> None:
        """gpu01's environments and uv, bytes and modes as they are."""
        if self._kept.exists():
            return
        argv = self.lab.host(HOSTS[0]).enter_argv(["tar", "-C", "/opt", "-cf", "-", "eyas"])
        partial = self._kept.with_suffix(f".{os.getpid()}")
        with partial.open("wb") as f:
            subprocess.run(argv, stdout=f, check=True)
        partial.rename(self._kept)

    # ---- what can be seen from outside

    def sh(self, script: str, name: str = HOSTS[0], *, check: bool = True) -> str:
        return self.lab.host(name).run(["sh", "-c", script], check=check).stdout.strip()

    def states(self) -> list[str]:
        return [self.sh(f"systemctl is-active {UNIT}", h, check=False) for h in HOSTS]

    def current(self, name: str = HOSTS[0]) -> str:
        return Path(self.sh("readlink /var/lib/eyas/current/chat || true", name)).name

    def restarts(self, name: str) -> int:
        return int(self.sh(f"systemctl show -P NRestarts {UNIT}", name))

    def answers(self) -> bool:
        """A completion, asked on rank 0's host as its health timer asks."""
        done = self.lab.host(HOSTS[0]).run(
            ["python3", "-sEB", "/var/lib/eyas/current/chat/healthcheck.py"], check=False
        )
        return done.returncode == 0

    def proof(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.sh("cat /var/lib/eyas/current/chat/proof.json"))
        return found

    def worker(self, name: str) -> int:
        """The engine's worker process on a host."""
        listed = self.sh("ps -eo pid=,args= | grep 'VLLM::[W]orker' || true", name)
        assert listed, self.sh("ps -eo pid=,args=", name)
        return int(listed.split()[0])

    def journal(self, name: str, lines: int = 60) -> str:
        return self.sh(f"journalctl -q --no-pager -u {UNIT} -n {lines} -o short-iso", name, check=False)

    def doctor(self) -> Report:
        """What `invoke doctor --host gpu01,gpu02` says."""
        found = [diagnose_host(h, None, self._connect, self.sources) for h in self.hosts()]
        return reported(found)

    @staticmethod
    def until(true: Callable[[], bool], *, within: float) -> None:
        end = time.monotonic() + within
        while not true():
            assert time.monotonic() < end, f"not within {within} s"
            time.sleep(0.5)

    def down(self, *, within: float) -> None:
        """Until no unit that can be looked at is active any more."""

        def off() -> bool:
            return all(s != "active" for s in self.states())

        self.until(off, within=within)

    def back(self, *, within: float, after: float = 0) -> float:
        """Seconds until both units are active and a completion is answered."""
        began = time.monotonic()
        while time.monotonic() - began < within:
            if time.monotonic() - began >= after and self.states() == ["active"] * 2 and self.answers():
                return time.monotonic() - began
            time.sleep(1)
        told = "\n".join(f"{h}:\n{self.journal(h)}" for h in HOSTS if self.lab.host(h).pid)
        raise AssertionError(f"the group is not back within {within} s\n{told}")
