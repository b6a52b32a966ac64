"""The small job by other tools, as their documentation would have it: from PyPI, in an environment apart."""

import json
import os
import shlex
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.hosts import Lab
from tests.lab.needs import cache_dir
from tests.lab.scale.job import CONFIG, CONFIG_TEXT, FOLDER, FORKS, UNIT, UNIT_TEXT

__all__ = ["ToolFailed", "others", "versions"]

PACKAGES = ("ansible-core", "mitogen", "pyinfra")
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


class ToolFailed(Exception):
    """Another tool's run ended badly: a result of the comparison, never its end."""


def others(lab: Lab) -> dict[str, Callable[[], object]]:
    """ansible-core (pipelining, its masters kept from run to run), the same with mitogen, pyinfra."""
    home = _home()
    if set(versions()) != set(PACKAGES):
        venv.create(home / "venv", with_pip=True)
        _run([str(home / "venv/bin/python"), "-m", "pip", "install", "-q", *PACKAGES], home)
    _write_job(lab, home)
    tools = home / "venv/bin"
    ansible = [
        str(tools / "ansible-playbook"),
        "-i",
        str(lab.inventory),
        "-f",
        str(FORKS),
        "-T",
        "60",
        "job.json",
    ]
    pyinfra = [str(tools / "pyinfra"), "-y", "--parallel", str(FORKS), "hosts.py", "job.py"]
    plugins = next(home.glob("venv/lib/*/site-packages/ansible_mitogen/plugins/strategy"))
    mitogen = {"ANSIBLE_STRATEGY": "mitogen_linear", "ANSIBLE_STRATEGY_PLUGINS": str(plugins)}
    return {
        "pyinfra": lambda: _run(pyinfra, home),
        "ansible+mitogen": lambda: _run(ansible, home, **mitogen),
        "ansible": lambda: _run(ansible, home, ANSIBLE_PIPELINING="1"),
    }


def versions() -> dict[str, str]:
    """Of the tools, as installed; empty before they are."""
    python = _home() / "venv/bin/python"
    if not python.exists():
        return {}
    asked = [str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
    got = subprocess.run(asked, capture_output=True, text=True, check=True)
    listed: list[dict[str, Any]] = json.loads(got.stdout)
    return {p["name"]: p["version"] for p in listed if p["name"] in PACKAGES}


def _home() -> Path:
    home = cache_dir().parent / "bench"
    home.mkdir(parents=True, exist_ok=True)
    return home


def _write_job(lab: Lab, home: Path) -> None:
    (home / "config.j2").write_text(CONFIG_TEXT.format(name="{{ inventory_hostname }}"))
    (home / "config.py.j2").write_text(CONFIG_TEXT.format(name="{{ host.name }}"))
    (home / "unit.j2").write_text(UNIT_TEXT)
    (home / "job.json").write_text(json.dumps(PLAYBOOK))
    (home / "job.py").write_text(PYINFRA)
    (home / "hosts.py").write_text(_pyinfra_hosts(lab))


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
        raise ToolFailed(f"{Path(argv[0]).name} ended with {done.returncode}")
