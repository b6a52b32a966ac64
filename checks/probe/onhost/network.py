"""Network interfaces: name, state, speed, and the IPv4 address and network of each."""

import fcntl
import socket
import struct

from .base import Look, attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
NET = "/sys/class/net"


def collect(look: Look) -> "dict[str, Any]":
    return {"network": {"interfaces": attempt(_interfaces, look)}}


def _interfaces(look: Look) -> "list[dict[str, Any]]":
    return [_interface(look, name) for name in look.names(NET) if look.exists(NET + "/" + name + "/mtu")]


def _interface(look: Look, name: str) -> "dict[str, Any]":
    folder = NET + "/" + name
    speed = attempt(look.line, folder + "/speed")
    return {
        "name": name,
        "state": attempt(look.line, folder + "/operstate"),
        "mtu": attempt(_number, look, folder + "/mtu"),
        # The kernel says -1, or refuses, where an interface has no speed (virtual, or down).
        "speed_mbit": int(speed) if isinstance(speed, str) and speed.isdigit() and int(speed) else None,
        "device": look.exists(folder + "/device"),
        "infiniband": look.exists(folder + "/device/infiniband"),
        "address": attempt(_address, name, SIOCGIFADDR),
        "netmask": attempt(_address, name, SIOCGIFNETMASK),
    }


def _number(look: Look, path: str) -> int:
    return int(look.line(path))


def _address(name: str, what: int) -> "str | None":
    """The first IPv4 address or its mask; None where the interface has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            answer = fcntl.ioctl(s.fileno(), what, struct.pack("256s", name[:15].encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
