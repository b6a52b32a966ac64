"""A bundle: what the doctor looked at, redacted, with a manifest of what was taken out.

A gzip'd tar of ``log.txt``, ``kernel.txt``, ``facts.json``, ``unit.service``, ``metrics.txt`` (those that
were there), ``report.json`` and ``manifest.json``. `read_bundle` turns it back into inputs.
"""

import gzip
import io
import json
import tarfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.doctor.model import Inputs, Report
from checks.doctor.redact import MASK, Redactor
from checks.doctor.report import report_json
from inventory.errors import UsageError

__all__ = ["KEEP_LOG", "read_bundle", "write_bundle"]

#: Of a longer log the first and the last half of this are kept.
KEEP_LOG = 32 << 20
_MAX_MEMBER = 256 << 20
_MEMBERS = ("log.txt", "kernel.txt", "facts.json", "unit.service", "metrics.txt", "meta.json")


def write_bundle(folder: Path, inputs: Inputs, report: Report, *, now: float | None = None) -> Path:
    """Write ``doctor-HOST-TIME.tar.gz`` (mode 0600) into ``folder``. ``inputs.log`` must be re-readable."""
    redactor = Redactor()
    stamp = time.time() if now is None else now
    members = {name: redactor.text(text).encode() for name, text in _texts(inputs).items()}
    for name, blocks in (("log.txt", inputs.log), ("kernel.txt", inputs.kernel)):
        if blocks is not None:
            members[name] = _kept(redactor.lines(blocks))
    members["report.json"] = redactor.text(json.dumps(report_json(report), indent=1)).encode()
    removed = dict(sorted(redactor.removed.items()))
    members["manifest.json"] = json.dumps(
        {
            "schema": 1,
            "made": int(stamp),
            "host": inputs.host,
            "files": {name: len(data) for name, data in members.items()},
            "removed": removed,
            "note": f"each removed value reads {MASK}",
        },
        indent=1,
    ).encode()
    return _write(folder, f"doctor-{inputs.host or 'log'}-{int(stamp)}.tar.gz", members, int(stamp))


def _texts(inputs: Inputs) -> dict[str, str]:
    meta = {
        "engine": inputs.engine,
        "engine_version": inputs.engine_version,
        "host": inputs.host,
        "drift": list(inputs.drift),
    }
    texts = {"meta.json": json.dumps(meta)}
    if inputs.facts is not None:
        texts["facts.json"] = json.dumps(_masked(dict(inputs.facts)), indent=1)
    if inputs.unit is not None:
        texts["unit.service"] = inputs.unit
    if inputs.metrics is not None:
        texts["metrics.txt"] = inputs.metrics
    return texts


def _masked(node: Any, name: str = "") -> Any:
    """Values whose key says that they are secret, whatever they look like."""
    secret = any(w in name.lower() for w in ("token", "api_key", "apikey", "secret", "password", "passwd"))
    if isinstance(node, dict):
        return {k: _masked(v, str(k)) for k, v in node.items()}
    if isinstance(node, list):
        return [_masked(v, name) for v in node]
    return MASK if secret and isinstance(node, str) and node else node


def _kept(blocks: Iterable[bytes]) -> bytes:
    """The log, or its first and last half when it is long, in bounded memory."""
    head, tail, dropped = bytearray(), bytearray(), 0
    for block in blocks:
        room = KEEP_LOG // 2 - len(head)
        head += block[: max(0, room)]
        tail += block[max(0, room) :]
        if len(tail) > KEEP_LOG:
            dropped += len(tail) - KEEP_LOG // 2
            del tail[: len(tail) - KEEP_LOG // 2]
    gap = f"\n[... {dropped} bytes left out ...]\n".encode() if dropped else b""
    return bytes(head) + gap + bytes(tail)


def _write(folder: Path, name: str, members: dict[str, bytes], stamp: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name.replace("/", "_")
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=stamp) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size, info.mtime, info.mode = len(data), stamp, 0o600
            tar.addfile(info, io.BytesIO(data))
    temporary = path.with_suffix(".part")
    temporary.touch(mode=0o600)
    temporary.write_bytes(buffer.getvalue())
    temporary.replace(path)
    return path


def read_bundle(path: Path) -> Inputs:
    """The inputs of a saved bundle. Only known names are read; nothing is written anywhere."""
    try:
        with tarfile.open(path, "r:gz") as tar:
            found = {m.name: _member(tar, m) for m in tar if m.isfile() and m.name in _MEMBERS}
    except (OSError, tarfile.TarError, EOFError) as e:
        raise UsageError(
            f"{path} is not a bundle: {e}", hint="a bundle is what invoke doctor --save wrote"
        ) from e
    if not found:
        raise UsageError(
            f"{path} holds nothing a bundle has", hint="a bundle is what invoke doctor --save wrote"
        )
    try:
        facts = json.loads(found["facts.json"]) if "facts.json" in found else None
        meta = json.loads(found.get("meta.json", b"{}"))
    except ValueError as e:
        raise UsageError(f"{path} is damaged: {e}", hint="save the bundle again") from e
    text = {k: v.decode("utf-8", "replace") for k, v in found.items()}
    inputs = Inputs(
        log=[found["log.txt"]] if "log.txt" in found else None,
        kernel=[found["kernel.txt"]] if "kernel.txt" in found else None,
        facts=facts if isinstance(facts, dict) else None,
        unit=text.get("unit.service"),
        metrics=text.get("metrics.txt"),
    )
    return replace(
        inputs,
        engine=str(meta.get("engine", "")),
        engine_version=str(meta.get("engine_version", "")),
        host=str(meta.get("host", "")),
        drift=tuple(map(str, meta.get("drift", ()))),
    )


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read(_MAX_MEMBER) if file else b""
