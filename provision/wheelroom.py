"""Room that an environment takes on a host, while it is made."""

from inventory.locks import WheelLock
from inventory.model import Device
from provision.wheelhouse import Wheelhouse

__all__ = ["COMPILED", "INSTALLED_PER_WHEEL_BYTE", "wheel_room"]

#: An installed wheel set is about this many times its downloads: measured 2,123 MiB from 602 MiB.
INSTALLED_PER_WHEEL_BYTE = 3.6
#: And this many times what its archives unpack to, for the compiled files: measured 2,123 MiB from 1,987 MiB.
COMPILED = 1.1
#: Typical wheel sets in bytes where neither the lock nor a folder of wheels tells the real size.
WHEELS_BYTES = {"cuda": 9_000_000_000, "cpu": 650_000_000}


def wheel_room(lock: WheelLock, house: Wheelhouse, device: Device, *, stored: bool) -> dict[str, int]:
    """Bytes below /opt/eyas while an environment is made: what it is, and the wheels where they come first.

    ``stored``: from an index uv unpacks while it downloads, and no wheels lie there. Real sizes where the
    wheels are on this machine or the lock tells them.
    """
    size = house.size() or lock.download_bytes or WHEELS_BYTES[device]
    unpacked = house.unpacked()
    installed = unpacked * COMPILED if unpacked else size * INSTALLED_PER_WHEEL_BYTE
    return {**({"wheels": size} if stored else {}), "environment": int(installed)}
