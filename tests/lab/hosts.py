"""A lab: some real hosts (systemd, sshd, sudo) in namespaces of this machine, with a simulated card.

    lab = Lab.up(["gpu01", "gpu02"], profile="rtx4090x2")
    lab.host("gpu01").run(["systemctl", "is-system-running"])
    subprocess.run(["ssh", *lab.ssh_args("gpu01"), "true"])
    lab.down()

State is in ``$XDG_CACHE_HOME/eyas/lab/labs/NAME``; nothing else remembers a lab, so a lab outlives the
process that made it, and `down` works after a crash of anything.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from inventory.errors import UsageError
from tests.lab import cgroups, faults
from tests.lab.access import write_access
from tests.lab.card.build import layers
from tests.lab.host import SUDO_PASSWORD, HostSpec, LabHost, unmount_below, write_json
from tests.lab.needs import cache_dir, ensure_packages, require_lab
from tests.lab.net import PREFIX, Network, free_index, netns_names
from tests.lab.profiles import parse
from tests.lab.rootfs import ensure_rootfs, locked, pick_release

__all__ = ["SUDO_PASSWORD", "HostSpec", "Lab", "LabHost", "foreign_labs", "lab_names", "say_to_stderr"]

NO_INDEX = 99  # a subnet no lab gets
NEEDED = ["iproute2", "util-linux", "openssh-client", "rsync"]


def say_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Lab:
    """The hosts under one name. Several labs live side by side, each with its own subnet."""

    def __init__(self, name: str, index: int, release: str, hosts: dict[str, HostSpec]) -> None:
        self.name: str = name
        self.index = index
        self.release = release
        self.home: Path = labs_dir() / name
        self.network: Network = Network(name, index)
        self.hosts = {spec.name: LabHost(self, spec) for spec in hosts.values()}

    # ---- the API of tests ----------------------------------------------------------------------------

    @classmethod
    def up(
        cls,
        names: Iterable[str],
        *,
        name: str = "default",
        release: str = "auto",
        yes: bool = False,
        say: Callable[[str], None] = say_to_stderr,
        **spec: Any,
    ) -> "Lab":
        """Make sure these hosts run and sshd answers on each; ``spec`` goes to HostSpec for new ones.

        Hosts the lab already has stay as they are (and are switched on when they were off).
        """
        require_lab()
        ensure_packages(NEEDED, yes)
        _check_names([name, *(names := list(names))])
        _check_inotify(0 if spec.get("light") else len(names), say, yes=yes)
        HostSpec("checked", 0, **spec)
        with locked(labs_dir() / f"{name}.lock"):
            if name in lab_names():
                release = cls.load(name).release
            base = ensure_rootfs(pick_release(release), yes=yes, say=say)
            lab = cls._load_or_new(name, release)
            lab._add(names, spec)
            lab.network.up()
            for host in (lab.hosts[n] for n in names):
                if not host.exists():
                    light = host.spec.light
                    host.make([base] if light else layers(base, parse(host.spec.profile), yes=yes, say=say))
                host.power_on()
            lab.write_access()
            for n in names:
                lab.hosts[n].wait_ssh()
        return lab

    @classmethod
    def load(cls, name: str = "default") -> "Lab":
        """The lab of that name; UsageError when there is none."""
        path = labs_dir() / name / "lab.json"
        if not path.exists():
            raise UsageError(f"no lab {name!r}", hint="invoke lab up --hosts 2")
        known = json.loads(path.read_text())
        ours = {f.name for f in fields(HostSpec)}  # another checkout's lab may know more
        kept = [{k: v for k, v in spec.items() if k in ours} for spec in known["hosts"]]
        specs = {spec["name"]: HostSpec(**spec) for spec in kept}
        return cls(name, known["index"], known["release"], specs)

    @classmethod
    def find(cls, name: str) -> "Lab":
        """For removing: the lab, or what is left of one whose state is lost (groups, namespaces)."""
        with suppress(UsageError):
            return cls.load(name)
        if name not in foreign_labs() and not (labs_dir() / name).exists():
            raise UsageError(f"no lab {name!r}", hint="invoke lab status")
        return cls(name, NO_INDEX, "", {})

    def host(self, name: str) -> LabHost:
        if name not in self.hosts:
            raise UsageError(
                f"lab {self.name!r} has no host {name!r}", hint=f"one of {', '.join(self.hosts)}"
            )
        return self.hosts[name]

    def ssh_args(self, name: str) -> list[str]:
        """Arguments of ssh and scp for that host, ending with its name."""
        return ["-F", str(self.home / "ssh_config"), self.host(name).name]

    @property
    def inventory(self) -> Path:
        return self.home / "hosts.yml"

    def fault(self, host: str, kind: str, value: str = "") -> str:
        """Make something go wrong (faults.FAULTS, or ``gpu:`` and a card fault); says what was done."""
        return faults.fault(self.host(host), kind, value)

    def heal(self, host: str, kind: str = "") -> list[str]:
        """Undo that, or everything done to the host."""
        return faults.heal(self.host(host), kind)

    def down(self) -> None:
        """Stop and remove all of it: processes, namespaces, groups, mounts, disks. Safe to repeat."""
        with locked(labs_dir() / f"{self.name}.lock", fleeting=True):
            # Not only the hosts we know: another process may have added some.
            left = cgroups.hosts(self.name) | {p.name for p in (self.home / "hosts").glob("*")}
            for number, name in enumerate(sorted(left)):
                (self.hosts.get(name) or LabHost(self, HostSpec(name, number))).remove()
            self.network.down()
            cgroups.remove(self.name)
            unmount_below(self.home)
            shutil.rmtree(self.home, ignore_errors=True)

    # ---- bookkeeping ---------------------------------------------------------------------------------

    @classmethod
    def _load_or_new(cls, name: str, release: str) -> "Lab":
        """The number is taken under one lock for all labs, and kept by the file written inside it."""
        with locked(labs_dir() / ".numbers"), suppress(UsageError):
            return cls.load(name)
        with locked(labs_dir() / ".numbers"):
            if name in foreign_labs():
                raise UsageError(
                    f"a lab {name!r} runs already, with its state in another cache folder",
                    hint=f"invoke lab down --lab {name}, or take another name with --lab",
                )
            taken: set[int] = set()
            for other in lab_names():
                with suppress(OSError, ValueError, KeyError):  # it went down meanwhile
                    # Another checkout's lab may be described in words that this one doesn't know.
                    taken.add(json.loads((labs_dir() / other / "lab.json").read_text())["index"])
            lab = cls(name, free_index(taken), pick_release(release), {})
            lab.save()
            return lab

    def _add(self, names: list[str], spec: dict[str, Any]) -> None:
        used = {h.spec.number for h in self.hosts.values()}
        free = (n for n in range(10_000) if n not in used)
        for name in names:
            if name not in self.hosts:
                self.hosts[name] = LabHost(self, HostSpec(name, next(free), **spec))
        self.save()

    def save(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        known = {
            "schema": 1,
            "index": self.index,
            "release": self.release,
            "hosts": [asdict(h.spec) for h in self.hosts.values()],
        }
        write_json(self.home / "lab.json", known)

    def write_access(self) -> None:
        """Inventory, ssh_config and known_hosts as the hosts' keys are now."""
        write_access(self.home, self.hosts.values())


def foreign_labs() -> set[str]:
    """Labs that this machine runs and this cache folder knows nothing of."""
    running = {name.split(".")[1] for name in netns_names() if name.startswith(PREFIX)} | cgroups.labs()
    return running - set(lab_names())


def labs_dir() -> Path:
    return cache_dir() / "labs"


def lab_names() -> list[str]:
    return sorted(p.parent.name for p in labs_dir().glob("*/lab.json"))


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?", name):
            raise UsageError(f"bad name {name!r}", hint="lower-case letters, digits and '-', 1 to 31 of them")


def _check_inotify(hosts: int, say: Callable[[str], None], *, yes: bool) -> None:
    """A systemd host holds about six inotify instances of root's; 20 hosts are known to fit into 128.

    One too many ends with 255 as it boots, whichever lab it belongs to. ``yes``: raise the limit, until the
    next boot of this machine.
    """
    path = Path("/proc/sys/fs/inotify/max_user_instances")
    limit, running = int(path.read_text()), sum(len(cgroups.hosts(name)) for name in cgroups.labs())
    if not hosts or (hosts + running) * 6.4 <= limit:
        return
    wanted = max(1024, (hosts + running) * 10)
    told = f"fs.inotify.max_user_instances is {limit}, enough for about {limit * 10 // 64} hosts"
    with suppress(OSError):
        if yes:
            path.write_text(str(wanted))
            say(f"{told}: it is {wanted} now, until the next boot")
            return
    say(f"warning: {told}; {hosts + running} need: sysctl fs.inotify.max_user_instances={wanted}")
