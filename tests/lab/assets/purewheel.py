"""Write small pure-Python wheels, byte for byte the same each time, so that a lock can pin their hash."""

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_wheel"]

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes] | None = None,
    *,
    summary: str = "",
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """Put ``name-version-py3-none-any.whl`` into ``folder``; return its path.

    ``files`` maps paths inside site-packages to content; ``scripts`` maps a command to ``module:function``.
    """
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = dict(files or {})
    content[f"{info}/METADATA"] = (metadata + (f"Summary: {summary}\n" if summary else "")).encode()
    content[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: eyas\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    if scripts:
        lines = [f"{command} = {entry}" for command, entry in sorted(scripts.items())]
        content[f"{info}/entry_points.txt"] = ("[console_scripts]\n" + "\n".join(lines) + "\n").encode()
    record = [f"{path},{_digest(data)},{len(data)}" for path, data in sorted(content.items())]
    content[f"{info}/RECORD"] = ("\n".join([*record, f"{info}/RECORD,,"]) + "\n").encode()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for path, data in sorted(content.items()):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return wheel
