"""What can be made to go wrong with a lab host, each with its way back.

``value`` is the fault's one parameter, a string as typed: a port, a rate, a path, a size.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inventory.errors import ChangeFailed, CheckRefused, UsageError
from tests.lab import cgroups, posing
from tests.lab.profiles import fault_names
from tests.lab.sizes import parse_size

if TYPE_CHECKING:
    from tests.lab.hosts import LabHost

__all__ = ["FAULTS", "active", "fault", "heal", "kinds"]

CARD = "gpu:"
Act = Callable[["LabHost", str], None]


@dataclass(frozen=True)
class Fault:
    """``off`` None: an event, over when it has happened. ``default``: the value when none is given."""

    says: str
    on: Act
    off: Act | None = None
    default: str = ""


def fault(host: "LabHost", kind: str, value: str = "") -> str:
    """Make it happen; returns one sentence on what was done. UsageError for a kind or value nobody knows."""
    if kind.startswith(CARD):
        _card(host, kind.removeprefix(CARD), add=True)
        return f"{host.name}: cards are now {host.spec.profile}"
    if kind not in FAULTS:
        raise UsageError(f"no such fault {kind!r}", hint=f"one of {', '.join(kinds())}")
    known = FAULTS[kind]
    value = value or known.default
    known.on(host, value)
    if known.off:
        _remember(host, {**active(host), kind: value})
    return f"{host.name}: {known.says.format(value=value)}"


def heal(host: "LabHost", kind: str = "") -> list[str]:
    """Undo one fault, or all (card faults too) without ``kind``; returns what was undone.

    The kernel log keeps what it was told until the next boot, as on a real box.
    """
    if kind.startswith(CARD):
        _card(host, kind.removeprefix(CARD), add=False)
        return [kind]
    if kind and kind not in FAULTS:
        raise UsageError(f"no such fault {kind!r}", hint=f"one of {', '.join(kinds())}")
    now = active(host)
    if kind and kind not in now:
        raise UsageError(f"{host.name} has no {kind!r}", hint=f"it has: {', '.join(now) or 'none'}")
    # The newest first: a frozen host can't be asked to start its sshd.
    healed = [kind] if kind else [*reversed(now)]
    for name in healed:
        off = FAULTS[name].off
        if off:
            off(host, now[name])
        _remember(host, {k: v for k, v in active(host).items() if k != name})
    if not kind and "+" in host.spec.profile:
        healed += [CARD + name for name in host.spec.profile.split("+")[1:]]
        host.set_profile(host.spec.profile.split("+")[0])
    return healed


def kinds() -> list[str]:
    return [*FAULTS, *(CARD + name for name in fault_names())]


def active(host: "LabHost") -> dict[str, str]:
    """Kind -> value of what was done and not undone yet, in that order."""
    path = _file(host)
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _file(host: "LabHost") -> Path:
    return host.home / "faults.json"


def _remember(host: "LabHost", faults: dict[str, str]) -> None:
    _file(host).write_text(json.dumps(faults))


def _card(host: "LabHost", name: str, *, add: bool) -> None:
    base, *faults = host.spec.profile.split("+")
    faults = [f for f in faults if f != name] + ([name] if add else [])
    host.set_profile("+".join([base, *faults]))


# ---- the network --------------------------------------------------------------------------------------


def _link(up: bool) -> Act:
    return lambda host, _: host.lab.network.set_link(host.spec.number, up)


def _rate(host: "LabHost", value: str) -> None:
    host.lab.network.limit_rate(host.name, host.spec.number, _number(value, "megabits a second"))


def _delay(host: "LabHost", value: str) -> None:
    host.lab.network.delay(host.name, host.spec.number, _number(value, "milliseconds"))


def _lossy(host: "LabHost", value: str) -> None:
    percent = int(_number(value, "percent"))
    rules = (
        "add table inet eyas_loss;"
        "add chain inet eyas_loss in { type filter hook prerouting priority -300 ; };"
        f"add rule inet eyas_loss in iifname eth0 numgen random mod 100 < {percent} drop"
    )
    host.run(["nft", rules])


def _reject(host: "LabHost", value: str) -> None:
    port = _port(value)
    rules = (
        f"add table inet eyas_reject_{port};"
        f"add chain inet eyas_reject_{port} in {{ type filter hook input priority 0 ; }};"
        f"add rule inet eyas_reject_{port} in tcp dport {port} reject with tcp reset"
    )
    host.run(["nft", rules])


def _no_table(name: str) -> Act:
    return lambda host, value: _quiet(host, "nft", f"delete table inet {name.format(value=value)}")


def _take_port(host: "LabHost", value: str) -> None:
    unit = f"--unit=eyas-lab-port-{_port(value)}"
    program = f"import socket as s; x = s.create_server(('', {_port(value)}))\nwhile 1: x.accept()[0].close()"
    host.run(["systemd-run", "--quiet", unit, "/usr/bin/python3", "-c", program])
    look = f"ss -Hltn 'sport = :{_port(value)}' | grep -q . && exit; sleep 0.1"
    host.run(["sh", "-c", f"for _ in $(seq 100); do {look}; done; exit 1"])


# ---- sshd and users -----------------------------------------------------------------------------------


def _new_host_key(host: "LabHost", _: str) -> None:
    key = "/etc/ssh/ssh_host_ed25519_key"
    host.run(["sh", "-ec", f"rm -f {key} {key}.pub; ssh-keygen -q -t ed25519 -N '' -f {key}"])
    host.run(["systemctl", "restart", "ssh"])


def _trust_host_key(host: "LabHost", _: str) -> None:
    host.lab.write_access()


def _kill_sessions(host: "LabHost", _: str) -> None:
    host.run(["pkill", "-KILL", "-f", "^sshd: [a-z]+@"], check=False)


def _sudo(mode: str) -> Act:
    line = {"password": "op ALL=(ALL:ALL) ALL\n", "none": "", "free": "op ALL=(ALL:ALL) NOPASSWD: ALL\n"}[
        mode
    ]
    return lambda host, _: host.write("/etc/sudoers.d/eyas-lab", line, mode=0o440)


# ---- disk and memory ----------------------------------------------------------------------------------

FILLER = "/var/tmp/eyas-lab-filler"  # in the host


def _fill(host: "LabHost", _: str) -> None:
    if host.spec.size is None:
        raise CheckRefused(
            "its disk is as large as this machine's", host=host.name, hint="invoke lab up NAME --size 512M"
        )
    host.run(["dd", "if=/dev/zero", f"of={FILLER}", "bs=1M"], check=False)


def _read_only(host: "LabHost", value: str) -> None:
    if not value.startswith("/"):
        raise UsageError("read-only needs a folder of the host", hint="--value /opt")
    host.run(["mkdir", "-p", value])
    host.run(["mount", "--bind", value, value])
    host.run(["mount", "-o", "remount,bind,ro", value])


def _memory(host: "LabHost", value: str) -> None:
    if host.spec.memory is not None and not value:
        raise UsageError("memory needs a size", hint="--value 200M")
    cgroups.limit_memory(host.lab.name, host.name, parse_size(value))


def _slow_disk(host: "LabHost", value: str) -> None:
    cgroups.limit_writes(host.lab.name, host.name, host.home, int(_number(value, "MiB a second")) << 20)


# ---- helpers ------------------------------------------------------------------------------------------


def _posing(act: Act, like: str) -> Act:
    def checked(host: "LabHost", value: str) -> None:
        if not re.fullmatch(like, value):
            raise UsageError(f"{value!r} can't be one", hint="a version like 2.17, or seconds like -3600")
        act(host, value)

    return checked


def _number(value: str, unit: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", value) or float(value) == 0:
        raise UsageError(f"{value!r} is not a number of {unit}", hint="--value 10")
    return float(value)


def _port(value: str) -> int:
    if not value.isdigit() or not 0 < int(value) < 65536:
        raise UsageError(f"{value!r} is not a port", hint="--value 8000")
    return int(value)


def _quiet(host: "LabHost", *argv: str) -> None:
    """On the way back: what a reboot has undone already is fine."""
    host.run(argv, check=False)


def _freeze(frozen: bool) -> Act:
    return lambda host, _: cgroups.freeze(host.lab.name, host.name, frozen)


def _silence(host: "LabHost", _: str) -> None:
    host.run(["systemctl", "stop", "ssh.service"])


def _power_on(host: "LabHost", _: str) -> None:
    host.power_on()
    host.wait_ssh()


def _crash(host: "LabHost", _: str) -> None:
    if host.pid is None:
        raise ChangeFailed("it is off already", host=host.name)
    host.power_off()


FAULTS: dict[str, Fault] = {
    "link-down": Fault("its cable is pulled", _link(up=False), _link(up=True)),
    "frozen": Fault("it hangs: accepts connections, never answers", _freeze(True), _freeze(False)),
    "sshd-stopped": Fault(
        "sshd is stopped", _silence, lambda h, _: _quiet(h, "systemctl", "start", "ssh.service")
    ),
    "port-rejected": Fault("port {value} is rejected", _reject, _no_table("eyas_reject_{value}"), "22"),
    "port-taken": Fault(
        "a program listens on port {value}",
        _take_port,
        lambda h, v: _quiet(h, "systemctl", "stop", f"eyas-lab-port-{v}"),
        "8000",
    ),
    "rate": Fault(
        "its link carries {value} Mbit/s",
        _rate,
        lambda h, _: h.lab.network.limit_rate(h.name, h.spec.number, None),
        "10",
    ),
    "latency": Fault(
        "every packet takes {value} ms more each way",
        _delay,
        lambda h, _: h.lab.network.delay(h.name, h.spec.number, None),
        "50",
    ),
    "loss": Fault("{value} percent of what it is sent is lost", _lossy, _no_table("eyas_loss"), "20"),
    "sessions-killed": Fault("its SSH sessions are killed", _kill_sessions),
    "host-key-changed": Fault("its SSH host key is another one", _new_host_key, _trust_host_key),
    "sudo-password": Fault("sudo asks op for a password", _sudo("password"), _sudo("free")),
    "no-sudo": Fault("op may not use sudo", _sudo("none"), _sudo("free")),
    "disk-full": Fault("its disk is full", _fill, lambda h, _: _quiet(h, "rm", "-f", FILLER)),
    "read-only": Fault("{value} is read-only", _read_only, lambda h, v: _quiet(h, "umount", "-l", v), "/opt"),
    "slow-disk": Fault(
        "its disk takes {value} MiB/s",
        _slow_disk,
        lambda h, _: cgroups.limit_writes(h.lab.name, h.name, h.home, None),
        "1",
    ),
    "memory": Fault(
        "all of it may use {value} of memory",
        _memory,
        lambda h, _: cgroups.limit_memory(h.lab.name, h.name, h.spec.memory),
        "200M",
    ),
    "reboot": Fault("it was rebooted", lambda h, _: h.reboot()),
    "power-off": Fault("its plug is pulled", _crash, _power_on),
    "clock": Fault(
        "its Python's clock is {value} s off", _posing(posing.clock, r"-?\d+"), posing.honest, "3600"
    ),
    "glibc": Fault(
        "its C library says it is {value}", _posing(posing.glibc, r"\d+\.\d+"), posing.honest, "2.17"
    ),
    "python": Fault(
        "its Python says it is {value}", _posing(posing.python, r"\d+\.\d+\.\d+"), posing.honest, "3.8.10"
    ),
}
