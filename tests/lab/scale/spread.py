"""Weights to every host over limited links, by the rollout's own distribution, against the best tree.

A copy is given on only when it is whole and verified, so holders can at best double while one copy crosses a
link: with links of rate ``r`` each way, ``n`` hosts and a model of ``s`` bytes no such tree ends before

    (s / r) * (1 + ceil(log2(n)))        one fetch by the seed, then doublings

All hosts, the operator and the hub share this machine: size and rate are such that links, not its processors,
are what is waited for; ``cpu_busy`` says whether they were (below 1: yes).
"""

import functools
import hashlib
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inventory.hosts import load_inventory
from inventory.model import ModelRef
from provision import ssh
from provision.converge import Options as ConvergeOptions
from provision.fleet import each_host
from provision.rollout.crew import HostCrew
from provision.rollout.plan import Member, Options, host_words
from provision.weights import manifest_of, plan_weights
from tests.lab.hosts import Lab
from tests.lab.hub import Hub
from tests.lab.scale.meter import here, measured

__all__ = ["best_tree_s", "spread_weights", "table"]

FORKS = 20
BLOCK = 1 << 20


def best_tree_s(hosts: int, size: int, rate: float) -> float:
    """Seconds that no tree of whole copies can beat; size in bytes, rate in bytes a second."""
    return size / rate * (1 + math.ceil(math.log2(hosts)))


class _Crew(HostCrew):
    """A rollout's crew that only brings weights: a seed is prepared when it has fetched them."""

    def prepare(self, member: Member, *, until_weights: bool = False) -> None:
        if until_weights:
            return
        m = manifest_of(member.as_deployment().target, endpoint=None, token=None)
        say = self._for(member)
        todo = plan_weights(
            [m], set(), python="/usr/bin/python3", endpoint=None, token=None, push=False, say=say
        )
        for change in todo:
            change.apply(self.shell(member.as_host()))


def spread_weights(lab: Lab, megabytes: int, mbit: int, *, say: Callable[[str], None]) -> dict[str, Any]:
    """A JSON document. Raises RuntimeError when a host has not got every byte."""
    folder = lab.home / "hub/eyas-lab/weights"
    size = _model(folder, megabytes)
    for h in lab.hosts.values():
        lab.fault(h.name, "rate", str(mbit))
    with Hub(lab.home / "hub", bind=lab.network.gateway, cdn=None) as hub:
        members = _members(lab, f"{hub.url}/eyas-lab/weights/resolve/main")
        options = Options(forks=FORKS)
        connect = functools.partial(ssh.connect, options=ssh.SshOptions())
        told = functools.partial(_tell, say)
        before = _wire(lab)
        with _Crew(connect, "bench", options, ConvergeOptions(), told) as crew:
            each_host([m.as_host() for m in members], crew.take, forks=FORKS)
            cost, _ = measured(lab, lambda: crew.spread(members, members))
        crossed, from_hub = _wire(lab) - before, hub.sent()
    _all_there(lab, folder)
    bound = best_tree_s(len(members), size, mbit * 1e6 / 8)
    return {
        "schema": 1,
        "hosts": len(members),
        "bytes": size,
        "mbit": mbit,
        **here(),
        **cost.as_dict(),
        "best_tree_s": round(bound, 1),
        "times_the_best": round(cost.seconds / bound, 2),
        "hub_bytes": from_hub,
        "operator_bytes": crossed - from_hub,
        "cpu_busy": round(cost.cpu_s / cost.seconds / (os.cpu_count() or 1), 2),
    }


def _tell(say: Callable[[str], None], host: str, text: str) -> None:
    if not re.search(r"\d%| GB$", text):
        say(f"{host}: {text}" if host else text)


def _model(folder: Path, megabytes: int) -> int:
    """A model of random bytes (nothing on the way may shrink them); its size with all files."""
    folder.mkdir(parents=True)
    size = megabytes * 1_000_000
    head = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    with (folder / "model.safetensors").open("wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        for start in range(0, size, BLOCK):
            f.write(os.urandom(min(BLOCK, size - start)))
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    sums = [f"{_sha256(p)}  {p.name}\n" for p in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return sum(p.stat().st_size for p in folder.iterdir())


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _members(lab: Lab, url: str) -> list[Member]:
    wish = {"name": "bench", "engine": "vllm", "target": ModelRef(url=url).model_dump(exclude_none=True)}
    hosts = load_inventory(lab.inventory).select("all")
    return [Member(host_words(h), wish, "pending", want="new", weight_bytes=1) for h in hosts]


def _wire(lab: Lab) -> int:
    """Bytes that have crossed the operator's one wire into the lab, both ways."""
    folder = Path("/sys/class/net", lab.network.wire, "statistics")
    return sum(int((folder / f"{way}_bytes").read_text()) for way in ("rx", "tx"))


def _all_there(lab: Lab, folder: Path) -> None:
    wanted = _sha256(folder / "model.safetensors")
    end = time.monotonic() + 60
    for h in lab.hosts.values():
        got = h.run(["sh", "-c", "sha256sum /var/lib/eyas/weights/*/*/model.safetensors"], check=False)
        if got.stdout.split(" ")[0] != wanted or time.monotonic() > end:
            raise RuntimeError(f"{h.name} has not got the weights: {got.stdout}{got.stderr}")


def table(found: dict[str, Any]) -> str:
    f = found
    size, hub, operator = (f[k] / 1e6 for k in ("bytes", "hub_bytes", "operator_bytes"))
    return (
        f"{size:.0f} MB to {f['hosts']} hosts over links of {f['mbit']} Mbit/s;"
        f" {f['cpus']} CPUs for all, {f['cpu_busy']:.0%} busy by it, load {f['load'][0]}\n"
        f"{f['seconds']:.0f} s: {f['times_the_best']} times the best tree of whole copies"
        f" ({f['best_tree_s']:.0f} s)\n"
        f"{hub:.1f} MB from the hub, {operator:.1f} MB between the operator and all hosts"
    )
