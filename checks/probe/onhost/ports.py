"""Listening TCP ports and who holds them, from /proc/net and the holders' open files."""

import os
import re
import struct

from .base import Look, LookFailed, attempt, missing, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LISTEN = "0A"
MOST = 2000


def collect(look: Look) -> "dict[str, Any]":
    return {"ports": attempt(_ports, look)}


def _ports(look: Look) -> "list[dict[str, Any]]":
    found = []
    for name in ("tcp", "tcp6"):
        if look.exists("/proc/net/" + name):
            found += _listening(look.text("/proc/net/" + name, 16 << 20))
    owners = _owners(look, {inode for _, _, inode in found})
    return [_entry(look, port, address, owners.get(inode)) for address, port, inode in sorted(found)[:MOST]]


def _listening(table: str) -> "list[tuple[str, int, str]]":
    """(address, port, socket inode) per listening socket."""
    out = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == LISTEN:
            address, _, port = words[1].partition(":")
            out.append((_address(address), int(port, 16), words[9]))
    return out


def _address(text: str) -> str:
    """The kernel writes an address as native 32-bit words in hex."""
    raw = b"".join(struct.pack("=I", int(text[i : i + 8], 16)) for i in range(0, len(text), 8))
    if len(raw) == 4:
        return ".".join(map(str, raw))
    if not any(raw):
        return "::"
    import socket  # noqa: PLC0415 - costs as much as all of this look, and few hosts need it

    return socket.inet_ntop(socket.AF_INET6, raw)


def _owners(look: Look, wanted: "set[str]") -> "dict[str, int]":
    owners: dict[str, int] = {}
    for pid in (n for n in look.names("/proc") if n.isdigit()):
        folder = look.path(f"/proc/{pid}/fd")
        try:
            for fd in os.listdir(folder):
                link = os.readlink(folder + "/" + fd)
                if link.startswith("socket:[") and link[8:-1] in wanted:
                    owners[link[8:-1]] = int(pid)
        except OSError:
            continue  # the process ended, or isn't ours: its port says so below
    return owners


def _entry(look: Look, port: int, address: str, pid: "int | None") -> "dict[str, Any]":
    if pid is None:
        unseen = missing(f"not visible as uid {os.getuid()}")
        return {"port": port, "address": address, "pid": unseen, "process": unseen, "unit": unseen}
    who = process(look, pid)
    return {"port": port, "address": address, "pid": pid, "process": who["name"], "unit": who["unit"]}


def process(look: Look, pid: int) -> "dict[str, Any]":
    """Name, unit and user id of a process, as far as they can be seen."""
    folder = f"/proc/{pid}"
    return {
        "name": attempt(look.line, folder + "/comm"),
        "unit": attempt(_unit, look, folder + "/cgroup"),
        "uid": attempt(lambda: os.stat(look.path(folder)).st_uid),
    }


def _unit(look: Look, path: str) -> "str | None":
    try:
        text = look.text(path)
    except OSError as e:
        raise LookFailed(reason(e)) from e
    units = re.findall(r"/([^/\n]+\.(?:service|scope))(?=/|$)", text, re.MULTILINE)
    return units[-1] if units else None
