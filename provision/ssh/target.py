"""Where a host is and how it is reached: the inventory's words, read for both SSH clients."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import UsageError
from inventory.model import Host
from provision.ssh.options import SshOptions

__all__ = ["Target", "target_of"]


@dataclass(frozen=True)
class Target:
    """Everything both SSH clients (Fabric here, OpenSSH under rsync) need to reach the same host."""

    host: Host
    config_file: Path | None
    options: dict[str, str]
    key_file: str | None

    @property
    def user(self) -> str | None:
        return self.host.user

    def openssh(self, accept_new: bool) -> list[str]:
        argv = [
            "ssh",
            "-o",
            "BatchMode=yes",
            "-o",
            f"StrictHostKeyChecking={'accept-new' if accept_new else 'yes'}",
        ]
        if self.config_file:
            argv += ["-F", str(self.config_file)]
        if self.key_file:
            argv += ["-i", self.key_file]
        for key, value in self.options.items():
            argv += ["-o", f"{key}={value}"]
        if self.host.port != 22:
            argv += ["-p", str(self.host.port)]
        return argv


def target_of(host: Host, options: SshOptions) -> Target:
    """Read Ansible's SSH variables: key file, and `-F`, `-i`, `-J`, `-o K=V` of the common arguments."""
    words = shlex.split(
        " ".join(str(host.vars.get(f"ansible_ssh_{k}_args", "")) for k in ("common", "extra"))
    )
    config, key = (
        options.config,
        host.vars.get("ansible_ssh_private_key_file") or host.vars.get("ansible_private_key_file"),
    )
    opts: dict[str, str] = {}
    it = iter(words)
    for word in it:
        flag, rest = word[:2], word[2:]
        if flag not in {"-F", "-i", "-J", "-o"}:
            raise UsageError(
                f"ssh argument {word} is not understood",
                hint="use -F, -i, -J or -o KEY=VALUE",
                host=host.name,
            )
        value = rest or next(it, "")
        if flag == "-F":
            config = Path(value)
        elif flag == "-i":
            key = value
        elif flag == "-J":
            opts["ProxyJump"] = value
        else:
            name, _, setting = value.partition("=")
            opts[name] = setting
    return Target(host, config, opts, str(Path(str(key)).expanduser()) if key else None)
