"""`doctor --fix` on a real host: the service is ready afterwards, or all is as it was."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inventory.hosts import load_inventory
from inventory.load import load_deployment
from provision import converge
from provision.diagnosis import diagnose_hosts
from provision.run import Flags
from provision.sources import Sources
from provision.ssh import SshOptions, connect
from tests.lab import demo
from tests.lab.doctor.conftest import quiet, small_model
from tests.lab.doctor.faults import Box
from tests.lab.hosts import Lab
from tests.lab.hub import Hub

pytestmark = pytest.mark.lab

GOOD = """# served to the team
engine: vllm
engine_version: "0.33.0"
lock: {lock}
target:
  repo: eyas-lab/target
draft:
  method: eagle3
  model:
    repo: eyas-lab/head
  num_speculative_tokens: 3
served_model_name: demo
max_model_len: 512  # prompts are short
wheels_from: push
weights_from: push
"""


@dataclass
class Stage:
    box: Box
    file: Path
    good: str
    wheelhouse: str

    def provision(self) -> converge.HostReport:
        host = load_inventory(self.box.host.lab.inventory).select(self.box.host.name)[0]
        options = converge.Options(sources=Sources(wheelhouse=Path(self.wheelhouse)))
        d = load_deployment(self.file)
        return converge.provision_host(host, d, lambda h: connect(h, SshOptions()), options, quiet)

    def fix(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
        hosts = load_inventory(self.box.host.lab.inventory).select(self.box.host.name)
        flags = Flags(wheelhouse=self.wheelhouse, as_json=True)
        capsys.readouterr()
        code = diagnose_hosts(
            hosts, str(self.file), flags, fix=True, yes=True, connect=lambda h: connect(h, SshOptions())
        )
        told = json.loads(capsys.readouterr().out)
        return code, told["hosts"][0]


@pytest.fixture(scope="module")
def stage(make_lab: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("mend")
    standin = demo._standin(quiet)
    for name in ("target", "head"):
        small_model(folder / "models" / "eyas-lab" / name)
    lab = make_lab(["gpu01"], profile="rtx4090x2")
    with (
        Hub(folder / "models", bind=lab.network.gateway, cdn=lab.network.alias) as hub,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HF_ENDPOINT", hub.url)
        good = GOOD.format(lock=standin.plain.lock)
        one = Stage(Box(lab.host("gpu01")), folder / "demo.yml", good, str(standin.wheelhouse))
        one.file.write_text(good)
        one.box.engine()
        yield one


@pytest.fixture(autouse=True)
def mended(stage: Stage) -> Iterator[None]:
    yield
    stage.box.heal()
    stage.file.write_text(stage.good)


def test_a_length_over_the_models_is_cut_to_it(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.file.write_text(stage.good.replace("max_model_len: 512", "max_model_len: 8192"))
    assert stage.provision().exit_code == 5
    code, told = stage.fix(capsys)
    assert (code, told["status"]) == (0, "fixed"), told
    assert stage.file.read_text() == stage.good.replace("max_model_len: 512", "max_model_len: 4096")
    assert stage.box.state() == ("active", "running")


def test_a_time_out_added_by_hand_is_set_aside(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.box.drop_in("TimeoutStartSec=1")
    stage.box.engine(start_s=6)
    stage.box.fails()
    code, told = stage.fix(capsys)
    assert (code, told["status"]) == (0, "fixed"), told
    assert "TimeoutStartSec" not in stage.box.sh(
        "systemctl cat eyas-demo | grep -c 'TimeoutStartSec=1$' || true"
    )


def test_a_port_that_is_taken_is_changed(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.box.sh("systemctl stop eyas-demo")
    stage.box.lab("port-taken", "8000")
    stage.box.fails()
    code, told = stage.fix(capsys)
    assert (code, told["status"]) == (0, "fixed"), told
    assert load_deployment(stage.file).port == 8001


def test_a_shard_cut_short_is_fetched_again(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    file = stage.box.sh("ls /var/lib/eyas/weights/eyas-lab--target*/*/model.safetensors").strip()
    stage.box.sh(f"truncate -s -2 {file}")
    stage.box.fails()
    code, told = stage.fix(capsys)
    assert (code, told["status"]) == (0, "fixed"), told
    assert stage.box.state() == ("active", "running")


def test_a_cache_that_root_wrote_into_is_given_back(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """As after somebody ran the engine by hand with sudo: systemd mends only the folder itself."""
    cache = "/var/cache/eyas-demo/vllm"
    stage.box.sh(f"mkdir -p {cache}; chown -R root:root {cache}; chmod -R go= {cache}")
    stage.box.fails()
    code, told = stage.fix(capsys)
    assert (code, told["status"]) == (0, "fixed"), told
    assert told["cause"].startswith("cache-not-writable")
    assert stage.box.sh(f"find {cache} ! -user eyas").strip() == ""
    assert stage.box.state() == ("active", "running")


def test_shared_memory_of_killed_runs_is_removed(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.file.write_text(stage.good + "tensor_parallel: 2\n")
    assert stage.provision().exit_code == 0
    stale, other = "/dev/shm/vllm_dist_stale", "/dev/shm/other"
    stage.box.sh(
        "mount -o remount,size=300M /dev/shm; systemctl stop eyas-demo; "
        f"head -c 60M /dev/zero >{stale}; chown eyas {stale}; echo mine >{other}",
        undo=f"mount -o remount,size=50% /dev/shm; rm -f {stale} {other}",
    )
    code, told = stage.fix(capsys)
    assert (code, told["status"]) == (0, "fixed"), told
    assert told["cause"].startswith("shm-too-small")
    left = stage.box.sh("ls /dev/shm")
    assert "vllm_dist_stale" not in left
    assert "other" in left
    assert stage.box.state() == ("active", "running")


def test_a_driver_that_upgrades_itself_is_held(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is wrong yet, and nothing restarts."""
    assert stage.provision().exit_code == 0
    pid = stage.box.sh("systemctl show -p MainPID eyas-demo")
    for name in ("nvidia-driver-580", "unattended-upgrades"):
        stage.box.sh(
            package(name), undo=f"apt-mark unhold {name} >/dev/null; dpkg --purge --force-all {name}"
        )
    conf = "/etc/apt/apt.conf.d/20auto-upgrades"
    stage.box.sh(f"echo 'APT::Periodic::Unattended-Upgrade \"1\";' >{conf}", undo=f"rm -f {conf}")
    code, told = stage.fix(capsys)
    assert (code, told["status"]) == (0, "fixed"), told
    assert told["cause"].startswith("driver-not-held")
    assert "nvidia-driver-580" in stage.box.sh("apt-mark showhold")
    assert stage.box.sh("systemctl show -p MainPID eyas-demo") == pid


def package(name: str) -> str:
    """Build and install an empty package of this name."""
    control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: lab\nDescription: empty\n"
    return (
        f"d=$(mktemp -d); mkdir $d/DEBIAN; printf '{control}' >$d/DEBIAN/control; "
        f"dpkg-deb -b $d $d.deb >/dev/null; dpkg -i $d.deb >/dev/null; rm -r $d $d.deb"
    )


def test_what_does_not_help_is_undone(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    before = stage.file.read_text()
    stage.box.engine("oom-sampler")
    stage.box.fails()
    code, told = stage.fix(capsys)
    assert told["status"] == "undone", told
    assert code >= 5
    assert stage.file.read_text() == before


def test_a_driver_is_never_touched(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    before = stage.file.read_text()
    stage.box.engine("old-driver")
    stage.box.fails()
    code, told = stage.fix(capsys)
    assert (code, told["status"], told["plan"]) == (4, "by-hand", []), told
    assert told["commands"]
    assert stage.file.read_text() == before
