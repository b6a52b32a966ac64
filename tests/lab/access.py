"""Keys, and the files that let ssh, eyas and Ansible in: ``hosts.yml``, ``ssh_config``, ``known_hosts``."""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from tests.lab.hosts import LabHost

__all__ = ["make_key", "write_access"]


def make_key(path: Path, comment: str) -> str:
    """An ed25519 key pair at ``path`` unless it is there; returns the public line."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        subprocess.run(argv, check=True, capture_output=True)
    return path.with_name(path.name + ".pub").read_text().strip()


def write_access(home: Path, hosts: Iterable["LabHost"]) -> None:
    """Write inventory, ssh_config and known_hosts of the lab in ``home`` for the hosts that exist."""
    hosts = list(hosts)
    (home / "known_hosts").write_text("".join(_known(h) for h in hosts))
    (home / "ssh_config").write_text("".join(_ssh_config(home, h) for h in hosts))
    inventory = {
        "all": {
            "vars": {
                "ansible_ssh_private_key_file": str(home / "id_ed25519"),
                "ansible_ssh_common_args": " ".join(_options(home)),
                "ansible_python_interpreter": "/usr/bin/python3",
            },
            "children": {"gpu": {"hosts": {h.name: _vars(h) for h in hosts}}},
        }
    }
    text = "# Written by `invoke lab up`; gone with `invoke lab down`.\n"
    (home / "hosts.yml").write_text(text + yaml.safe_dump(inventory, sort_keys=False))


def _options(home: Path) -> list[str]:
    return [
        *("-o", f"UserKnownHostsFile={home / 'known_hosts'}"),
        *("-o", "GlobalKnownHostsFile=/dev/null"),
        *("-o", "StrictHostKeyChecking=yes"),
        *("-o", "IdentitiesOnly=yes"),
    ]


def _vars(host: "LabHost") -> dict[str, str]:
    return {"ansible_host": host.address, "ansible_user": host.spec.user}


def _known(host: "LabHost") -> str:
    kind, key, *_ = (host.home / "disk/upper/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
    return f"{host.address},{host.name} {kind} {key}\n"


def _ssh_config(home: Path, host: "LabHost") -> str:
    return (
        f"Host {host.name} {host.address}\n"
        f"  HostName {host.address}\n  User {host.spec.user}\n  IdentityFile {home / 'id_ed25519'}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {home / 'known_hosts'}\n"
        "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n\n"
    )
