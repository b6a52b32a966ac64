"""What is broken on the lab host, how, and the cause the doctor must name first.

Real, by the kernel, systemd or the disk: port, shard, cache, ProtectHome, start time-out, stop, disk full,
shared memory, the host's memory; the dead worker is a process of the stand-in that ends. The others are
spoken, and why:

- out of memory by phase, "KV cache too small", memory held by another, old driver: the cards are simulated
  below NVML and the stand-in allocates nothing, so it says what vLLM says, on a host whose probe agrees.
- hang, few guesses accepted: no engine of the lab does either when told to; the stand-in's file makes it.
- release.json is edited (ranks, home, shared memory, time-outs) where `provision` refuses the deployment, or
  would take a start of its own to the same state; what it refuses is in test_starts, by the real command.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from provision import layout
from tests.lab.host import LabHost

__all__ = ["FAULTS", "Box", "Fault"]

NAME = "demo"
UNIT = f"{layout.unit_name(NAME)}.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/eyas-lab.conf"
FAULT_FILE = "/etc/eyas-lab/engine.fault"
START_S = 40.0


@dataclass
class Box:
    """The host with a served deployment, and what was done to it. ``heal`` undoes all of that."""

    host: LabHost
    undo: list[Callable[[], Any]] = field(default_factory=list)

    # ---- ways to break it

    def engine(self, fault: str = "", **settings: Any) -> None:
        """The stand-in's behaviour; its file is seen by the next start and while it serves."""
        told = json.dumps({"start_s": 0.1, "death_exit_s": 0.2, "fault": fault, **settings})
        self.host.run(["mkdir", "-p", "/etc/eyas-lab"])
        self.host.write(FAULT_FILE, told)

    def release(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Another command line: as if the deployment had been written so."""
        path = f"{layout.current_link(NAME)}/release.json"
        text = self.host.run(["cat", path]).stdout
        told = json.loads(text)
        change(told)
        self.host.write(path, json.dumps(told))
        self.undo.append(lambda: self.host.write(path, text))

    def argv(self, *more: str, without: str = "") -> None:
        """More words at the end; ``without`` takes a flag and its value out."""

        def change(told: dict[str, Any]) -> None:
            words = told["argv"]
            if without:
                at = words.index(without)
                del words[at : at + 2]
            words += more

        self.release(change)

    def plain(self) -> None:
        self.argv(without="--speculative-config")

    def drop_in(self, *lines: str) -> None:
        self.host.run(["mkdir", "-p", DROP_IN.rpartition("/")[0]])
        self.host.write(DROP_IN, "\n".join(["[Service]", *lines, ""]))
        self.host.run(["systemctl", "daemon-reload"])
        self.undo.append(lambda: self.host.run(["systemctl", "daemon-reload"]))
        self.undo.append(lambda: self.host.run(["rm", "-f", DROP_IN]))

    def lab(self, kind: str, value: str = "") -> None:
        self.host.lab.fault(self.host.name, kind, value)
        self.undo.append(lambda: self.host.lab.heal(self.host.name, kind))

    def sh(self, script: str, *, undo: str = "") -> str:
        if undo:
            self.undo.append(lambda: self.host.run(["sh", "-ec", undo]))
        return self.host.run(["sh", "-ec", script]).stdout

    # ---- the service

    def state(self) -> tuple[str, str]:
        shown = self.host.run(["systemctl", "show", "-p", "ActiveState,SubState,NRestarts", UNIT]).stdout
        told = dict(line.split("=", 1) for line in shown.splitlines())
        return told["ActiveState"], told["SubState"]

    def restart(self) -> None:
        self.host.run(["systemctl", "reset-failed", UNIT], check=False)
        self.host.run(["systemctl", "restart", "--no-block", UNIT])

    def fails(self) -> None:
        """Start it and wait until that start is over."""
        self.restart()
        self._until(lambda: self.state() in {("activating", "auto-restart"), ("failed", "failed")})

    def serves(self) -> None:
        self.restart()
        self._until(lambda: self.state() == ("active", "running"))

    def _until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{UNIT} is {self.state()} after {START_S:g} s")
            time.sleep(0.2)

    def ask(self, requests: int = 1, tokens: int = 48, *, wait: bool = True) -> None:
        """Completions from inside the host."""
        body = json.dumps(
            {"model": NAME, "prompt": "one two three", "max_tokens": tokens, "ignore_eos": True}
        )
        curl = f"curl -s -m 20 -H 'Content-Type: application/json' -d '{body}' localhost:8000/v1/completions"
        end = "" if wait else "&"
        self.host.run(["sh", "-c", f"for i in $(seq {requests}); do {curl} >/dev/null 2>&1; done {end}"])

    def worker(self) -> str:
        return self.sh(
            f"systemd-cgls -u {UNIT} --no-pager >/dev/null; pgrep -f 'vllm serve' | tail -1"
        ).strip()

    def heal(self) -> None:
        with suppress(Exception):
            self.engine()
        for back in reversed(self.undo):
            back()
        self.undo.clear()
        self.engine()


@dataclass(frozen=True)
class Fault:
    """``after`` says what the doctor finds: a start that failed, or a service that runs."""

    name: str
    slug: str
    inject: Callable[[Box], Any]
    after: str = "fails"


def _engine(fault: str, *, plain: bool = False) -> Callable[[Box], None]:
    def inject(box: Box) -> None:
        box.engine(fault)
        if plain:
            box.plain()

    return inject


def _settings(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda told: told["settings"].update(values)


def _many_cards(box: Box) -> None:
    """The cards went: as many ranks as there were, on fewer."""
    box.argv("--tensor-parallel-size", "8")
    box.release(_settings(tensor_parallel=8))
    box.engine("nccl")


def _weights(box: Box) -> str:
    told = json.loads(box.host.run(["cat", f"{layout.current_link(NAME)}/release.json"]).stdout)
    return str(told["weights"]["target"]["path"])


def _truncated(box: Box) -> None:
    file = f"{_weights(box)}/model.safetensors"
    box.sh(f"cp -a {file} /var/tmp/whole; truncate -s -2 {file}", undo=f"mv /var/tmp/whole {file}")


def _at_home(box: Box) -> None:
    folder = _weights(box)
    box.sh(f"cp -a {folder} /home/op/model; chmod -R a+rX /home/op", undo="rm -rf /home/op/model")
    box.release(lambda told: told.update(argv=[w.replace(folder, "/home/op/model") for w in told["argv"]]))


def _unreadable_cache(box: Box) -> None:
    box.drop_in("ExecStartPre=/usr/bin/python3 -c \"import os; os.mkdir('/var/lib/other/cache')\"")
    box.sh("mkdir -p /var/lib/other; chmod 700 /var/lib/other", undo="rm -rf /var/lib/other")


def _other_process(box: Box) -> None:
    box.lab("gpu:busy")
    box.engine("memory-taken")


def _old_driver(box: Box) -> None:
    box.lab("gpu:driver-535")
    box.engine("old-driver")


def _slow_load(box: Box) -> None:
    box.drop_in("TimeoutStartSec=4")
    box.engine("stuck-start")


def _hang(box: Box) -> None:
    box.release(lambda told: told["timeouts"].update(hang_s=4, probe_s=2, probe_every_s=1))
    box.serves()
    box.engine("hang")
    box.ask(wait=False)
    box._until(lambda: box.state()[0] != "active")


def _dead_worker(box: Box) -> None:
    box.serves()
    box.engine("worker-death")
    box.ask()
    box._until(lambda: box.state()[0] != "active")


def _bad_guesses(box: Box) -> None:
    box.engine("low-acceptance", tokens_per_s=2000.0)
    box.serves()
    box.ask(8, 200)


def _port_taken(box: Box) -> None:
    box.sh(f"systemctl stop {UNIT}")
    box.lab("port-taken", "8000")


def _disk_full(box: Box) -> None:
    """Before the engine has written what it would only overwrite."""
    box.sh("rm -rf /var/cache/eyas-demo/vllm")
    box.lab("disk-full")


def _shm_full(box: Box) -> None:
    """What killed runs left fills it; two ranks need some."""
    box.argv("--tensor-parallel-size", "2")
    box.release(_settings(tensor_parallel=2))
    box.sh(
        "mount -o remount,size=1M /dev/shm; head -c 1M /dev/zero >/dev/shm/psm_left",
        undo="rm -f /dev/shm/psm_left; mount -o remount,size=50% /dev/shm",
    )


def _stopped(box: Box) -> None:
    box.serves()
    box.sh(f"systemctl stop {UNIT}")


FAULTS = (
    Fault("out of memory: weights", "oom-weights-load", _engine("oom-weights")),
    Fault("out of memory: profiling", "oom-profiling", _engine("oom-profile")),
    Fault("out of memory: KV cache", "oom-kv-allocation", _engine("oom-kv", plain=True)),
    Fault("out of memory: draft", "oom-spec-draft", _engine("oom-speculative")),
    Fault("out of memory: sampler", "oom-sampler-warmup", _engine("oom-sampler")),
    Fault("KV cache too small", "kv-cache-too-small", _engine("kv-too-small")),
    Fault("more ranks than cards", "tp-world-size-exceeds-gpus", _many_cards),
    Fault("port taken", "port-in-use", _port_taken),
    Fault("shard cut short", "weights-truncated", _truncated),
    Fault("model under ProtectHome", "service-sandbox-home", _at_home),
    Fault("folder of another user", "cache-not-writable", _unreadable_cache),
    Fault("start time-out", "service-start-timeout", _slow_load),
    Fault("memory held by another process", "gpu-memory-occupied", _other_process),
    Fault("dead worker", "worker-died", _dead_worker, after="injected"),
    Fault("hang", "engine-hung", _hang, after="injected"),
    Fault("few guesses accepted", "spec-low-acceptance", _bad_guesses, after="injected"),
    Fault("stopped", "service-not-running", _stopped, after="injected"),
    Fault("disk full", "disk-full", _disk_full),
    Fault("shared memory full", "shm-too-small", _shm_full),
    Fault("the host's memory", "host-ram-oom", lambda b: b.drop_in("MemoryMax=16M", "MemorySwapMax=0")),
    Fault("old driver", "driver-too-old", _old_driver),
)
