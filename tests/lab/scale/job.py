"""The small job as a plain script over OpenSSH (the floor), and as eyas does it: probe, plan, apply."""

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from checks.facts import HostFacts, Missing
from inventory.errors import HostUnreachable
from inventory.model import Host
from provision import ssh
from provision.change import Change
from provision.fleet import each_host
from provision.observe import probe
from provision.shell import Shell
from tests.lab.hosts import Lab

__all__ = ["CONFIG", "CONFIG_TEXT", "FOLDER", "FORKS", "UNIT", "UNIT_TEXT", "clean", "eyas", "floor"]

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


def _ssh_script(lab: Lab, host: Host, script: str) -> None:
    done = subprocess.run(
        ["ssh", *lab.ssh_args(host.name), "sudo", "sh", "-s"],
        input=script, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{host.name}: {done.stderr}")


def floor(lab: Lab, hosts: list[Host]) -> None:
    with ThreadPoolExecutor(FORKS) as pool:
        list(pool.map(lambda h: _ssh_script(lab, h, SCRIPT.replace("{name}", h.name)), hosts))


def clean(lab: Lab, hosts: list[Host]) -> None:
    stop = "systemctl disable -q --now eyas-bench.service 2>/dev/null"
    gone = f"{stop}; rm -rf {FOLDER} {UNIT}; systemctl daemon-reload"
    with ThreadPoolExecutor(FORKS) as pool:
        list(pool.map(lambda h: _ssh_script(lab, h, gone), hosts))


# ---- eyas: probe -> plan -> apply, as provision does it


def eyas(hosts: list[Host]) -> int:
    """How many changes were made."""
    options = ssh.SshOptions()
    return sum(each_host(hosts, lambda h: _converge(h, options), forks=FORKS))


def _converge(host: Host, options: ssh.SshOptions) -> int:
    with ssh.connect(host, options) as shell:
        changes = _plan(host, probe(shell, keys=[FOLDER], files=[CONFIG, UNIT]))
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
