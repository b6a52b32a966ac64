"""The same small job on lab hosts by several tools, one after another in one run: seconds and ratios.

The job: facts, a folder, two templates, daemon-reload when one changed, a unit enabled and running. Each tool
does it once (which changes things) and then again, ``rounds`` times, when nothing has to change; the best of
those counts, because the machine is shared. The floor is one new OpenSSH connection and one script a host.
"""

import json
import os
import resource
import shlex
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from checks.facts import HostFacts, Missing
from checks.probe import decode, pack
from inventory.errors import HostUnreachable
from inventory.hosts import load_inventory
from inventory.model import Host
from provision import ssh
from provision.change import Change
from provision.fleet import each_host
from provision.shell import Shell
from tests.lab.hosts import Lab
from tests.lab.needs import cache_dir

__all__ = ["bench_fleet"]

FORKS = 20
FOLDER, CONFIG, UNIT = "/etc/eyas-bench", "/etc/eyas-bench/config", "/etc/systemd/system/eyas-bench.service"
CONFIG_TEXT = "host = {name}\nthreads = 4\n"
UNIT_TEXT = """[Unit]
Description=a small job

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true

[Install]
WantedBy=multi-user.target
"""
SCRIPT = f"""set -e
uname -r; cat /etc/os-release; free -b; nproc; df -B1 /
mkdir -p {FOLDER}
put() {{ cat >"$1.new"; if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; changed=1; fi; }}
put {CONFIG} <<'EOF'
{CONFIG_TEXT}EOF
put {UNIT} <<'EOF'
{UNIT_TEXT}EOF
[ -z "$changed" ] || systemctl daemon-reload
systemctl is-enabled -q eyas-bench.service || systemctl enable -q eyas-bench.service
systemctl is-active -q eyas-bench.service || systemctl start eyas-bench.service
"""


def bench_fleet(lab: Lab, *, rounds: int = 3, others: bool = False, as_json: bool = False) -> int:
    """Print a table, or one JSON document. ``others``: also ansible-core and pyinfra, from PyPI."""
    hosts = list(load_inventory(lab.inventory).select("all"))
    tools: dict[str, Callable[[], object]] = {
        "floor": lambda: _floor(lab, hosts),
        "eyas": lambda: _eyas(hosts),
    }
    if others:
        tools |= _others(lab)
    found = []
    for name, run in tools.items():
        _clean(lab, hosts)
        first = _timed(run)
        again = [_timed(run, no_change=True) for _ in range(rounds)]
        found.append({"tool": name, "first_s": first, "again_s": min(again), "all_again_s": again})
    floor = found[0]["again_s"]
    assert isinstance(floor, float)
    for row in found:
        assert isinstance(row["again_s"], float)
        row["times_the_floor"] = round(row["again_s"] / floor, 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if as_json:
        words = {"schema": 1, "hosts": len(hosts), "forks": FORKS, "tools": found, "peak_mib": peak}
        print(json.dumps({**words, "load": os.getloadavg()[0], "cpus": os.cpu_count()}))
        return 0
    cpus, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{len(hosts)} hosts, {FORKS} forks, {cpus} CPUs for both ends, load {load:.1f}")
    print(f"{'TOOL':<10} {'FIRST RUN':>10} {'NO CHANGE':>10} {'x FLOOR':>8}")
    for row in found:
        print(
            f"{row['tool']:<10} {row['first_s']:>8.2f} s {row['again_s']:>8.2f} s {row['times_the_floor']:>8}"
        )
    print(f"peak memory of this process: {peak} MiB")
    return 0


def _timed(run: Callable[[], object], *, no_change: bool = False) -> float:
    began = time.monotonic()
    made = run()
    if no_change and made:
        raise RuntimeError(f"the second run still made {made} changes")
    return round(time.monotonic() - began, 3)


def _ssh_script(lab: Lab, host: Host, script: str) -> None:
    done = subprocess.run(
        ["ssh", *lab.ssh_args(host.name), "sudo", "sh", "-s"],
        input=script, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{host.name}: {done.stderr}")


def _floor(lab: Lab, hosts: list[Host]) -> None:
    with ThreadPoolExecutor(FORKS) as pool:
        list(pool.map(lambda h: _ssh_script(lab, h, SCRIPT.replace("{name}", h.name)), hosts))


def _clean(lab: Lab, hosts: list[Host]) -> None:
    stop = "systemctl disable -q --now eyas-bench.service 2>/dev/null"
    gone = f"{stop}; rm -rf {FOLDER} {UNIT}; systemctl daemon-reload"
    with ThreadPoolExecutor(FORKS) as pool:
        list(pool.map(lambda h: _ssh_script(lab, h, gone), hosts))


# ---- eyas: probe -> plan -> apply, as provision does it


def _eyas(hosts: list[Host]) -> int:
    """How many changes were made."""
    options = ssh.SshOptions()
    return sum(each_host(hosts, lambda h: _converge(h, options), forks=FORKS))


def _converge(host: Host, options: ssh.SshOptions) -> int:
    with ssh.connect(host, options) as shell:
        params = {"folders": ["/"], "files": [CONFIG, UNIT], "own_folders": [FOLDER], "user": "eyas"}
        got = shell.run(pack.ARGV, timeout=60, stdin=pack.payload(params), check=False)
        facts = decode.decode(got.stdout.encode(), host.name, time.time(), stderr=got.stderr.encode())
        changes = _plan(host, facts)
        for change in changes:
            change.apply(shell)
        return len(changes)


def _plan(host: Host, facts: HostFacts) -> list[Change]:
    folders, files = facts.value("eyas.folders", dict) or {}, facts.value("eyas.files", dict) or {}
    units = facts.get("eyas.units")
    if isinstance(units, Missing):
        raise HostUnreachable(f"too busy to be looked at: {units.reason}", host=host.name)
    unit = units.value.get("eyas-bench.service") or {}
    changes = []
    if not folders.get(FOLDER):
        changes.append(Change("folder", _command("mkdir", "-p", FOLDER)))
    wanted = {CONFIG: CONFIG_TEXT.format(name=host.name).encode(), UNIT: UNIT_TEXT.encode()}
    for path, data in wanted.items():
        if (files.get(path) or {}).get("sha256") != sha256(data).hexdigest():
            changes.append(Change(path, lambda s, p=path, d=data: s.write(p, d)))  # type: ignore[misc]
    if changes:
        changes.append(Change("reload", _command("systemctl", "daemon-reload")))
    if unit.get("active") != "active" or unit.get("enabled") != "enabled":
        changes.append(Change("start", _command("systemctl", "enable", "-q", "--now", "eyas-bench.service")))
    return changes


def _command(*argv: str) -> Callable[[Shell], None]:
    def apply(shell: Shell) -> None:
        shell.run(argv, timeout=60)

    return apply


# ---- other tools, from PyPI into an environment of their own

PLAYBOOK = [
    {
        "hosts": "all",
        "become": True,
        "gather_facts": True,
        "tasks": [
            {"file": {"path": FOLDER, "state": "directory"}},
            {"template": {"src": "config.j2", "dest": CONFIG}},
            {"template": {"src": "unit.j2", "dest": UNIT}, "register": "unit"},
            {"systemd": {"daemon_reload": True}, "when": "unit.changed"},
            {"systemd": {"name": "eyas-bench", "enabled": True, "state": "started"}},
        ],
    }
]
PYINFRA = f"""
from pyinfra import host
from pyinfra.facts.server import Kernel, LinuxDistribution
from pyinfra.operations import files, systemd
host.get_fact(Kernel), host.get_fact(LinuxDistribution)
files.directory("{FOLDER}", _sudo=True)
files.template("config.py.j2", "{CONFIG}", name=host.name, _sudo=True)
unit = files.template("unit.j2", "{UNIT}", _sudo=True)
systemd.daemon_reload(_sudo=True, _if=unit.did_change)
systemd.service("eyas-bench.service", running=True, enabled=True, _sudo=True)
"""


def _others(lab: Lab) -> dict[str, Callable[[], object]]:
    home = cache_dir().parent / "bench"
    if not (home / "venv/bin/ansible-playbook").exists():
        venv.create(home / "venv", with_pip=True)
        _run([str(home / "venv/bin/python"), "-m", "pip", "install", "-q", "ansible-core", "pyinfra"], home)
    (home / "config.j2").write_text(CONFIG_TEXT.format(name="{{ inventory_hostname }}"))
    (home / "config.py.j2").write_text(CONFIG_TEXT.format(name="{{ host.name }}"))
    (home / "unit.j2").write_text(UNIT_TEXT)
    (home / "job.json").write_text(json.dumps(PLAYBOOK))
    (home / "job.py").write_text(PYINFRA)
    (home / "hosts.py").write_text(_pyinfra_hosts(lab))
    ansible = [
        str(home / "venv/bin/ansible-playbook"),
        "-i",
        str(lab.inventory),
        "-f",
        str(FORKS),
        "job.json",
    ]
    pyinfra = [str(home / "venv/bin/pyinfra"), "-y", "--parallel", str(FORKS), "hosts.py", "job.py"]
    return {
        "ansible": lambda: _run(ansible, home, ANSIBLE_PIPELINING="1"),
        "pyinfra": lambda: _run(pyinfra, home),
    }


def _pyinfra_hosts(lab: Lab) -> str:
    config = {"ssh_config_file": str(lab.home / "ssh_config")}
    known = {"ssh_known_hosts_file": str(lab.home / "known_hosts"), "ssh_key": str(lab.home / "id_ed25519")}
    rows = [
        (h.name, {**config, **known, "ssh_user": h.spec.user, "ssh_hostname": h.address})
        for h in lab.hosts.values()
    ]
    return f"hosts = {rows!r}\n"


def _run(argv: list[str], folder: Path, **env: str) -> None:
    done = subprocess.run(
        argv, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(f"{shlex.join(argv)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n")
        raise RuntimeError(f"{Path(argv[0]).name} ended with {done.returncode}")
