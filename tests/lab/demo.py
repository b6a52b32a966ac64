"""`invoke demo`: the main job on a lab host, end to end, with the real engine's CPU build (or the stand-in).

Nothing here provisions: it makes the surroundings (host, hub, wheels, tiny models) and calls the same
`provision` that a GPU box gets. Then it looks from outside whether what was promised is so.
"""

import json
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventory.errors import ChangeFailed
from inventory.hosts import load_inventory
from inventory.model import Deployment, Draft, ModelRef
from provision import converge, layout
from provision.converge import HostReport
from provision.sources import Sources
from provision.ssh import SshOptions, connect
from tests.lab.assets.cache import cache_root
from tests.lab.hosts import Lab
from tests.lab.hub import Hub

__all__ = ["run"]

HOST = "gpu01"
#: Below this rate the head would be useless; the tiny one reaches 0.8.
ACCEPTED = 0.3
Say = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """What the demo plays with: a deployment without speculation and one with, and where they come from."""

    engine: str
    plain: Deployment
    drafted: Deployment
    models: Path
    wheelhouse: Path


def run(*, quick: bool, as_json: bool, yes: bool, down: bool) -> int:
    say = _teller()
    began = time.monotonic()
    stage = _standin(say) if quick else _real(say)
    lab = Lab.up([HOST], name="demo", yes=yes, say=say, profile="rtx4090x1")
    try:
        with Hub(stage.models, bind=lab.network.gateway, cdn=lab.network.alias) as hub:
            result = _play(stage, lab, hub, say)
    finally:
        if down:
            lab.down()
    result["seconds"] = round(time.monotonic() - began, 1)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _tell(result, down)
    return 0 if result["ok"] else 5


def _teller() -> Say:
    start = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - start:6.1f} s  {text}\n")
        sys.stderr.flush()

    return say


def _real(say: Say) -> Stage:
    from tests.lab.assets.models import OWNER, build_models
    from tests.lab.assets.wheelhouse import build_wheelhouse

    say("the real engine's CPU build: wheels (600 MB once, then from the cache)")
    wheels = build_wheelhouse()
    say("tiny models: a Llama and its EAGLE-3 head, trained here once")
    models = build_models()
    plain = Deployment(
        name="demo",
        engine="vllm",
        engine_version="0.32.0",
        device="cpu",
        target=ModelRef(repo=f"{OWNER}/tiny-llama"),
        served_model_name="tiny-llama",
        dtype="float32",
        max_model_len=512,
        max_num_seqs=4,
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        wheels_from="push",
    )
    return Stage(
        "vllm 0.32.0 (CPU build)",
        plain,
        _drafted(plain, f"{OWNER}/tiny-llama-eagle3"),
        models.root,
        wheels.dir,
    )


def _standin(say: Say) -> Stage:
    from tests.lab.engine.build import build_standin_wheelhouse

    say("the stand-in engine: it shows eyas at work and proves nothing about an engine")
    standin = build_standin_wheelhouse("0.33.0")
    models = cache_root() / "lab" / "standin-models"
    for name in ("target", "head"):
        _fake_model(models / "eyas-lab" / name)
    plain = Deployment(
        name="demo",
        engine="vllm",
        engine_version="0.33.0",
        lock=str(standin.lock.path),
        target=ModelRef(repo="eyas-lab/target"),
        served_model_name="demo",
        max_model_len=512,
        wheels_from="push",
        weights_from="push",
    )
    return Stage("stand-in", plain, _drafted(plain, "eyas-lab/head"), models, standin.dir)


def _drafted(plain: Deployment, head: str) -> Deployment:
    draft = Draft(method="eagle3", model=ModelRef(repo=head), num_speculative_tokens=3)
    return plain.model_copy(update={"draft": draft})


def _fake_model(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "vocab_size": 64,
    }
    config |= {
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
    }
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


# ---- the play


def _play(stage: Stage, lab: Lab, hub: Hub, say: Say) -> dict[str, Any]:
    provision = _provisioner(stage, lab, hub, say)
    say("provision without speculation: its output is what speculation must not change")
    provision(stage.plain)
    say("provision with the EAGLE-3 head")
    served = provision(stage.drafted)
    say("provision again: nothing may change")
    again = provision(stage.drafted)
    proof = _proof(lab)
    result = {
        "schema": 1,
        "engine": stage.engine,
        "host": HOST,
        "release": served.release,
        "ready": _answers(lab),
        "acceptance_rate": proof.get("acceptance_rate"),
        "acceptance_length": proof.get("acceptance_length"),
        "tokens_per_s": proof.get("tokens_per_s"),
        "ttft_ms": proof.get("ttft_ms"),
        "lossless": proof.get("lossless"),
        "second_run_changed": again.changed,
        "recovered_after_kill": _kill_worker(lab, say),
    }
    accepted = float(proof.get("acceptance_rate") or 0)
    good = result["ready"] and result["lossless"] and result["recovered_after_kill"]
    result["ok"] = bool(good and again.changed == 0 and accepted > ACCEPTED)
    return result


def _provisioner(stage: Stage, lab: Lab, hub: Hub, say: Say) -> Callable[[Deployment], HostReport]:
    host = load_inventory(lab.inventory).select(HOST)[0]
    sources = Sources(endpoint=hub.url, wheelhouse=stage.wheelhouse)
    options = converge.Options(sources=sources)

    def provision(d: Deployment) -> HostReport:
        report = converge.provision_host(host, d, lambda h: connect(h, SshOptions()), options, _thinned(say))
        for change in report.changes:
            say(f"  {change['title']}: {change.get('seconds', '-')} s")
        if report.exit_code:
            raise ChangeFailed(f"provision {report.status}: {report.error}", hint=report.hint, host=HOST)
        say(f"  {report.status}, changed={report.changed}, {report.seconds} s")
        return report

    return provision


def _thinned(say: Say) -> Say:
    """Progress of copies at most every three seconds."""
    last = 0.0

    def tell(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > 3:
            last = time.monotonic()
            say(f"    {text[:100]}")

    return tell


def _proof(lab: Lab) -> dict[str, Any]:
    got = lab.host(HOST).run(["cat", f"{layout.current_link('demo')}/proof.json"])
    result: dict[str, Any] = json.loads(got.stdout)
    return result


def _answers(lab: Lab) -> bool:
    """A completion from inside the host, over its loopback, as a client there would ask."""
    program = f"{layout.current_link('demo')}/healthcheck.py"
    return bool(lab.host(HOST).run(["python3", "-sEB", program], check=False).returncode == 0)


def _kill_worker(lab: Lab, say: Say) -> bool:
    """SIGKILL, as the kernel's OOM killer would; is the service back by itself?"""
    host = lab.host(HOST)
    unit = f"{layout.unit_name('demo')}.service"
    restarts = _restarts(lab, unit)
    pid = _worker(lab, unit)
    say(f"SIGKILL to the engine's worker, process {pid}")
    host.run(["kill", "-9", str(pid)])
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if _restarts(lab, unit) > restarts and _answers(lab):
            say("  back by itself")
            return True
        time.sleep(1)
    return False


def _worker(lab: Lab, unit: str) -> int:
    """The worker by its title, else the process furthest below the unit's main one."""
    main = int(lab.host(HOST).run(["systemctl", "show", "-P", "MainPID", unit]).stdout)
    listed = lab.host(HOST).run(["ps", "-eo", "pid=,ppid=,args="]).stdout.splitlines()
    rows = [line.split(None, 2) for line in listed]
    depth = {main: 0}
    for _ in rows:  # parents may be listed after their children
        depth |= {int(pid): depth[int(parent)] + 1 for pid, parent, *_ in rows if int(parent) in depth}
    titled = [int(r[0]) for r in rows if len(r) > 2 and "worker" in r[2].lower() and int(r[0]) in depth]
    return titled[0] if titled else max(depth, key=lambda pid: depth[pid])


def _restarts(lab: Lab, unit: str) -> int:
    got = lab.host(HOST).run(["systemctl", "show", "-P", "NRestarts", unit], check=False)
    return int(got.stdout.strip() or 0)


def _tell(result: dict[str, Any], down: bool) -> None:
    words = [
        "ready",
        "acceptance_rate",
        "acceptance_length",
        "lossless",
        "second_run_changed",
        "recovered_after_kill",
    ]
    print(f"{result['engine']} on {HOST}: {'all as promised' if result['ok'] else 'NOT as promised'}")
    for word in words:
        print(f"  {word:<22} {result[word]}")
    print(f"  {'seconds':<22} {result['seconds']}")
    if not down:
        print("look around: invoke lab ssh gpu01 --lab demo      remove it: invoke lab down --lab demo")
