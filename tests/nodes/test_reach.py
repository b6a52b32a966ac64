"""Connections before a switch: the program on two loopback addresses, and what its answers mean."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.facts import HostFacts
from inventory.errors import CheckRefused, HostUnreachable
from inventory.model import Deployment, Host, ModelRef
from provision.converge import HostReport
from provision.nodes.ranks import Rank
from provision.nodes.reach import _listening

PROGRAM = Path(__file__).resolve().parents[2] / "systemd" / "reach.py"


def start(own: str, ports: list[int], **peers: str) -> subprocess.Popen[str]:
    told = {"address": own, "ports": ports, "peers": peers, "seconds": 2}
    pipe = subprocess.PIPE
    argv = [sys.executable, "-I", str(PROGRAM), json.dumps(told)]
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)


def test_two_reach_each_other_and_a_closed_port_is_named() -> None:
    with start("127.0.0.1", [], b="127.0.0.2") as a, start("127.0.0.2", [], a="127.0.0.1") as b:
        ports = [json.loads(line(p).partition(" ")[2]) for p in (a, b)]
        assert a.stdin
        assert b.stdin
        a.stdin.write(json.dumps({"b": {**ports[1], "1": "free"}}) + "\n")
        a.stdin.flush()
        found = json.loads(line(a))
        (port,) = ports[1]
        assert found == {f"b {port}": "ok", "b 1": "Connection refused"}
        a.stdin.close()
        b.stdin.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def rank(**tree: Any) -> Rank:
    d = Deployment(name="big", engine="vllm", target=ModelRef(repo="o/m"), tensor_parallel=2, nodes=2)
    host = Host(name="a", address="a")
    return Rank(host, d, None, lambda _: None, HostReport("a"), HostFacts("a", 0.0, tree))


def test_what_a_host_says_of_its_ports() -> None:
    said = 'listening {"29501": "busy", "29502": "free", "40000": "free"}'
    ours = rank(ports=[{"port": 29501, "unit": "eyas-big.service"}])
    assert set(_listening(said, ours)) == {"29501", "29502", "40000"}
    with pytest.raises(CheckRefused, match="port 29501, which the group needs, is taken by redis"):
        _listening(said, rank(ports=[{"port": 29501, "unit": None, "process": "redis"}]))
    with pytest.raises(CheckRefused, match=r"nobody can listen here .*29501: Cannot assign"):
        _listening('listening {"29501": "Cannot assign requested address"}', ours)
    with pytest.raises(HostUnreachable, match="could not be tried: no answer"):
        _listening("", ours)
