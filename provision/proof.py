"""What a release's proof is compared with and where it is kept: beside the release, on its host."""

import json
from hashlib import sha256
from typing import Any

from provision import layout
from provision.shell import Shell
from provision.want import Want

__all__ = ["baseline_key", "read_proof", "record_proof"]


def baseline_key(want: Want) -> str:
    """Same target, wheels and numeric settings: then greedy output must be the same."""
    d = want.deployment
    parts = [
        want.manifests["target"].commit,
        want.lock.id,
        d.dtype,
        d.quantization,
        d.kv_cache_dtype,
        d.tensor_parallel,
    ]
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def record_proof(shell: Shell, release: str, key: str, result: dict[str, Any], *, speculates: bool) -> None:
    """Compare with the recorded run without speculation and keep the result with the release."""
    baseline = layout.baseline_path(key)
    recorded = shell.read(baseline)
    if not speculates:
        shell.write(baseline, json.dumps(result).encode())
    elif recorded is None:
        result["lossless"] = None
        result["lossless_why"] = "no run without speculation is recorded for this target, wheels and settings"
    else:
        result["lossless"] = json.loads(recorded)["outputs"] == result["outputs"]
    shell.write(f"{layout.release_dir(release)}/proof.json", json.dumps(result, indent=1).encode())


def read_proof(shell: Shell, release: str | None) -> dict[str, Any] | None:
    """The proof a release gave on this host; None when none is recorded or it can't be read."""
    data = shell.read(f"{layout.release_dir(release)}/proof.json") if release else None
    try:
        found = json.loads(data) if data else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
