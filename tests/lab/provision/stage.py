"""What these tests play with: a lab, a hub with small models, the stand-in engine, and an operator."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import yaml

from inventory.hosts import load_inventory
from inventory.model import Deployment, Draft, Host, ModelRef
from provision import ssh
from provision.converge import HostReport, Options, provision_host
from provision.journal import Journal
from provision.sources import Sources
from tests.lab.engine.build import Standin, build_standin_wheelhouse
from tests.lab.hosts import Lab, LabHost
from tests.lab.hub import Hub

__all__ = ["PORT", "Stage", "eventually", "write_model"]

ROOT = Path(__file__).resolve().parents[3]
PORT = 8000
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "vocab_size": 448,
    "max_position_embeddings": 2048,
}


def write_model(folder: Path, *, size: int = 1 << 16, fill: bytes = b"\0", **changes: Any) -> Path:
    """A model in the hub's layout whose one tensor file has ``size`` bytes of data."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    data = len(header).to_bytes(8, "little") + header + (fill * size)[:size]
    (folder / "model.safetensors").write_bytes(data)
    return folder


def eventually(true: Callable[[], Any], *, within: float, what: str) -> Any:
    """Ask until the answer is true; the answer."""
    end = time.monotonic() + within
    while not (answer := true()):
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(0.1)
    return answer


@dataclass
class Stage:
    """``folder`` is the operator's: state, deployments, inventory, log."""

    lab: Lab
    hub: Hub
    standin: Standin
    folder: Path
    said: list[str] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def open(cls, lab: Lab, folder: Path) -> Iterator["Stage"]:
        standin = build_standin_wheelhouse(client=True)
        models = folder / "models" / "eyas-lab"
        write_model(models / "target", size=3 << 20)
        write_model(models / "head", num_hidden_layers=1)
        write_model(models / "head-b", num_hidden_layers=1, fill=b"b")
        write_model(models / "wide-head", num_hidden_layers=1, hidden_size=512)
        hub = Hub(models.parent, bind=lab.network.gateway, cdn=lab.network.alias, wheels=(standin.dir,))
        with hub:
            stage = cls(lab, hub, standin, folder)
            stage.inventory()
            stage.sh("systemctl is-system-running --wait", check=False)
            yield stage

    # ---- what is wanted

    def deployment(self, head: str | None = "head", **changes: Any) -> Deployment:
        """The target with an EAGLE-3 head on CUDA, by the stand-in engine, everything fetched by the host."""
        draft = Draft(method="eagle3", model=self.model(head), num_speculative_tokens=3) if head else Draft()
        base: dict[str, Any] = {
            "name": "chat",
            "engine": "vllm",
            "engine_version": "0.33.0",
            "lock": str(self.standin.lock.path),
            "target": self.model("target"),
            "draft": draft,
            "served_model_name": "chat",
            "max_model_len": 512,
            "port": PORT,
        }
        return Deployment(**{**base, **changes})

    @staticmethod
    def model(name: str, revision: str = "main") -> ModelRef:
        return ModelRef(repo=f"eyas-lab/{name}", revision=revision)

    def inventory(self, **variables: Any) -> Path:
        """The lab's, with the hub as the hosts' package index."""
        tree = yaml.safe_load(self.lab.inventory.read_text())
        tree["all"]["vars"] |= {"eyas_index_url": self.hub.index_url, **variables}
        path = self.folder / "hosts.yml"
        path.write_text(yaml.safe_dump(tree))
        return path

    # ---- the operator, in this process or in one that can be killed

    def host(self, name: str = "gpu01") -> Host:
        return load_inventory(self.folder / "hosts.yml").select(name)[0]

    def run(
        self, d: Deployment, name: str = "gpu01", *, sources: Sources | None = None, **options: Any
    ) -> HostReport:
        self.said = []
        every = Options(
            sources=replace(sources or Sources(), endpoint=self.hub.url),
            journal=Journal(self.folder / "journal.jsonl"),
            **options,
        )
        shell = ssh.SshOptions()
        return provision_host(self.host(name), d, lambda h: ssh.connect(h, shell), every, self.said.append)

    def write(self, d: Deployment) -> Path:
        path = self.folder / "inventory" / "deployments" / f"{d.name}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(json.loads(d.model_dump_json(exclude_defaults=True))))
        return path

    def start(
        self, d: Deployment, *words: str, name: str = "gpu01", env: dict[str, str] | None = None
    ) -> "Command":
        """The command line in a process of its own."""
        argv = [sys.executable, "-c", "from tasks import main; main()", "provision", "--host", name]
        argv += ["--inventory", str(self.folder / "hosts.yml"), "--deployment", str(self.write(d)), *words]
        argv.append("--no-preflight")  # it has its own tests, and these models are no models
        full = {**os.environ, "HF_ENDPOINT": self.hub.url, "XDG_STATE_HOME": str(self.folder / "state")}
        log = self.folder / "command.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env={**full, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        return Command(process, str(log))

    def command(self, d: Deployment, *words: str, **options: Any) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        return self.start(d, *words, **options).finish()

    # ---- what can be seen from outside

    def on(self, name: str = "gpu01") -> LabHost:
        return self.lab.host(name)

    def sh(self, script: str, name: str = "gpu01", **options: Any) -> str:
        return self.on(name).run(["sh", "-c", script], **options).stdout.strip()

    def answers(self, name: str = "gpu01", key: str = "", port: int = PORT) -> bool:
        """Whether a completion is answered, asked on the host itself."""
        body = json.dumps({"model": "chat", "prompt": "one two", "max_tokens": 2})
        auth = f"-H 'Authorization: Bearer {key}'" if key else ""
        script = (
            "import json,sys,urllib.request as u\n"
            f"r=u.Request('http://127.0.0.1:{port}/v1/completions',{body.encode()!r},"
            f"{{'Content-Type':'application/json','Authorization':'Bearer {key}'}})\n"
            "print(json.load(u.urlopen(r,timeout=5))['choices'][0]['text'])\n"
        )
        del auth
        return self.on(name).run(["python3", "-I", "-c", script], check=False).returncode == 0

    def engine(
        self, settings: dict[str, Any] | str = "", *, name: str = "gpu01", file: str = "engine"
    ) -> str:
        """Write (or with nothing remove) the stand-in's settings on the host; the file's path."""
        path = f"/etc/eyas-lab/{file}.fault"
        if not settings:
            self.sh(f"rm -f {path}", name)
            return path
        text = settings if isinstance(settings, str) else json.dumps(settings)
        self.sh("mkdir -p /etc/eyas-lab", name)
        self.on(name).write(path + ".new", text)
        self.sh(f"mv {path}.new {path}", name)
        return path

    def current(self, name: str = "gpu01") -> str:
        return Path(self.sh("readlink /var/lib/eyas/current/chat || true", name)).name

    def restarts(self, name: str = "gpu01") -> int:
        return int(self.sh("systemctl show -P NRestarts eyas-chat.service", name))


@dataclass
class Command:
    """An operator that can be killed."""

    process: subprocess.Popen[bytes]
    log: str

    def stderr(self) -> str:
        return Path(self.log).read_text()

    def says(self, text: str, *, within: float = 60) -> None:
        """Wait until it says this on stderr."""
        eventually(lambda: text in self.stderr() or self.process.poll() is not None, within=within, what=text)
        assert text in self.stderr(), f"it ended first: {self.stderr()}"

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def finish(self, timeout: float = 120) -> tuple[int, str, str]:
        try:
            out, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.communicate()
            raise
        return self.process.returncode, out.decode(), self.stderr()


class Caller:
    """A client that asks all the time; ``failed`` holds what it was told instead of an answer."""

    def __init__(self, stage: Stage, name: str = "gpu01") -> None:
        self.address, self.port = stage.on(name).address, PORT
        self.stage, self.name = stage, name
        self.failed: list[str] = []
        self.asked = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def _loop(self) -> None:
        script = (
            "import json,sys,time,urllib.request as u\n"
            f"b=json.dumps(dict(model='chat',prompt='a b',max_tokens=1)).encode()\n"
            "while True:\n"
            f" r=u.Request('http://127.0.0.1:{self.port}/v1/completions',b,{{'Content-Type':'application/json'}})\n"
            " try: u.urlopen(r,timeout=5).read(); print('ok',flush=True)\n"
            " except Exception as e: print('failed',e,flush=True)\n"
            " time.sleep(.1)\n"
        )
        argv = self.stage.on(self.name).enter_argv(["python3", "-I", "-c", script])
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as p:
            assert p.stdout
            for line in p.stdout:
                self.asked += 1
                if not line.startswith("ok"):
                    self.failed.append(line)
                if self._stop.is_set():
                    p.kill()

    def answered(self, *, at_least: int = 5) -> None:
        """It was answered all along."""
        eventually(lambda: self.asked >= at_least, within=20, what="answers to the caller")
        assert self.failed == []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)


class CommandLines:
    """Every command line on this machine, its lab hosts included, that holds one of these words.

    Read from outside the hosts: a watcher inside one takes the time of what it watches.
    """

    def __init__(self, *words: str) -> None:
        self.words = [w.encode() for w in words]
        self.found: set[str] = set()
        self.seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def _loop(self) -> None:
        while not self._stop.wait(0.1):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    line = path.read_bytes()
                    self.seen.add(line.split(b"\0")[0].decode(errors="replace"))
                    if any(w in line for w in self.words):
                        self.found.add(line.replace(b"\0", b" ").decode(errors="replace"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
