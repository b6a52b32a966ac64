"""Four hosts, an operator's folder, and a stand-in engine whose behaviour differs by release.

Each release reads its settings from a file of its own, so that a fault can come with the new release and be
gone with the former one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.lab.engine.build import build_standin_wheelhouse
from tests.lab.hosts import Lab
from tests.lab.test_standin import model

ROOT = Path(__file__).resolve().parents[3]
#: Speeds of the stand-in on a shared machine say nothing, its models are eight bytes; acceptance counts.
LOOSE = ("--no-preflight", "--ttft-tolerance", "5000", "--speed-tolerance", "95")


class Fleet:
    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab, self.home = lab, home
        self.extra: dict[str, Any] = {}
        built = build_standin_wheelhouse()
        assert built.lock.path
        shutil.copy(built.lock.path, home / "standin.txt")
        self.models = [model(home / "models" / name) for name in ("target", "head")]
        self.env = {**os.environ, "XDG_STATE_HOME": str(home / "state"), "COLUMNS": "200"}

    @property
    def names(self) -> list[str]:
        return list(self.lab.hosts)

    def deployment(self, version: str) -> Path:
        """A file for the deployment ``fl``; each ``version`` is a release of its own."""
        target, head = self.models
        words = {
            "engine": "vllm",
            "engine_version": "0.33.0",
            "lock": str(self.home / "standin.txt"),
            "target": {"path": target},
            "draft": {"method": "eagle3", "model": {"path": head}, "num_speculative_tokens": 3},
            "served_model_name": "tiny",
            "max_model_len": 512,
            "gpu_memory_utilization": 0.5,
            "wheels_from": "push",
            "weights_from": "push",
            "env": {"EYAS_STANDIN_FILE": f"/etc/eyas-lab/{version}.fault"},
        }
        words |= self.extra
        path = self.home / version / "fl.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(words))
        return path

    def fault(self, host: str, version: str, **settings: Any) -> None:
        script = "mkdir -p /etc/eyas-lab && cat >/etc/eyas-lab/$0.fault && chmod 644 /etc/eyas-lab/$0.fault"
        subprocess.run(
            ["ssh", *self.lab.ssh_args(host), "sudo", "sh", "-c", f"'{script}'", version],
            input=json.dumps(settings).encode(), check=True, capture_output=True,
        )  # fmt: skip

    def start(self, task: str, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "invoke", task, *words, "--inventory", str(self.lab.inventory)]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, cwd=ROOT, env=self.env, stdout=pipe, stderr=pipe, text=True)

    def run(self, task: str, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        with self.start(task, *words) as p:
            out, err = p.communicate(timeout=timeout)
        return subprocess.CompletedProcess(p.args, p.returncode, out, err)

    def rollout(self, version: str, *words: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the JSON document, the log."""
        file = str(self.deployment(version))
        got = self.run("rollout", "--limit", "gpu", "--deployment", file, "--yes", "--json", *LOOSE, *words)
        return got.returncode, json.loads(got.stdout or "{}"), got.stderr

    def served(self) -> dict[str, str]:
        """What each host really serves: the version of the release that answers, or why none does."""
        return {name: self._served(name) for name in self.names}

    def _served(self, name: str) -> str:
        """The settings file of the release the link names, once its service is active and it completes."""
        script = (
            "set -e; systemctl is-active --quiet eyas-fl; cd /var/lib/eyas/current/fl; "
            "python3 healthcheck.py >/dev/null; "
            'python3 -c \'import json; d = json.load(open("release.json")); '
            'print(d["env"]["EYAS_STANDIN_FILE"])\''
        )
        got = self.lab.host(name).run(["sh", "-c", script], check=False)
        return Path(got.stdout.strip()).stem if got.returncode == 0 else f"down: {got.stdout}{got.stderr}"

    def kill_when(self, p: subprocess.Popen[str], word: str, *, timeout: float = 120) -> None:
        """SIGKILL the operator as soon as its rollout's journal holds this event."""
        end = time.monotonic() + timeout
        folder = self.home / "state" / "eyas" / "rollouts"
        before = {f: f.stat().st_size for f in folder.glob("*.jsonl")}
        while time.monotonic() < end and p.poll() is None:
            for f in folder.glob("*.jsonl"):
                with f.open(encoding="utf-8") as journal:
                    journal.seek(before.get(f, 0))
                    if f'"event": "{word}"' in journal.read():
                        p.send_signal(signal.SIGKILL)
                        p.communicate()
                        return
            time.sleep(0.02)
        raise AssertionError(f"no {word} within {timeout} s: {p.communicate()}")
