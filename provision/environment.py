"""Wheels: one environment a lock, built beside the live one, hash-checked, proven, never half there."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import ChangeFailed
from provision import layout
from provision.change import Change
from provision.programs import program
from provision.shell import Shell
from provision.wheelhouse import Wheelhouse

__all__ = ["EnvWant", "plan_environment"]

PROOF = "eyas-proof.json"
_INSTALL_S = 3600
#: What uv says -> the next step. The first match counts.
_SAID = (
    ("No space left|ENOSPC", "free space on the host (`invoke prune`), then run again"),
    ("Hash mismatch|Bad CRC", "a wheel is not the locked one: replace it in the index or the wheelhouse"),
    (
        "not found in the (package registry|provided)|no version of",
        "the index lacks a locked wheel: add it there",
    ),
    ("Failed to fetch|error sending|dns error|timed out", "set eyas_index_url, or push: wheels_from: push"),
)


@dataclass(frozen=True)
class EnvWant:
    """What an environment must be.

    lock_id: hash of the lock; versions: name -> version as locked; imports: modules that must import;
    cuda: the CUDA build torch must report ("13.0"; None: a CPU build); python: interpreter on the host;
    index_url: the host's own index (None: its default); wheelhouse: pushed instead, from the operator's.
    """

    lock_id: str
    lock_text: str
    versions: dict[str, str]
    imports: tuple[str, ...]
    cuda: str | None
    python: str
    uv_binary: Path
    #: Shared libraries of the system that the engine loads -> the Debian/Ubuntu package that has each.
    libraries: Mapping[str, str]
    uv_version: str
    index_url: str | None = None
    wheelhouse: Wheelhouse | None = None


def plan_environment(
    want: EnvWant, complete: set[str], uv_have: set[str], say: Callable[[str], None]
) -> list[Change]:
    """``complete``: ids of environments that carry a proof; ``uv_have``: the versions of uv there."""
    if want.lock_id[:16] in complete:
        return []
    changes = []
    uv = f"{layout.UV}/{want.uv_version}/uv"
    if want.uv_version not in uv_have:
        changes.append(Change(f"uv {want.uv_version} -> {uv}", lambda s: _bring_uv(s, want.uv_binary, uv)))
    where = "pushed wheels" if want.wheelhouse else "the host's index"
    title = f"environment {want.lock_id[:16]}: {len(want.versions)} wheels from {where}, hash-checked, proven"
    changes.append(Change(title, lambda s: _install(s, want, uv, say)))
    return changes


def _bring_uv(shell: Shell, binary: Path, uv: str) -> None:
    """40 MB: rsync where the host has it, ten times as fast as a file through the command channel."""
    if shell.run(("sh", "-c", "command -v rsync"), timeout=20, check=False).ok:
        shell.push(binary.parent, str(Path(uv).parent), files=[binary.name])
        shell.run(("chmod", "0755", "--", uv), timeout=20)
    else:
        shell.write(uv, binary.read_bytes(), mode=0o755)


def _install(shell: Shell, want: EnvWant, uv: str, say: Callable[[str], None]) -> None:
    env = layout.env_dir(want.lock_id)
    lock = f"{layout.ROOT}/locks/{want.lock_id[:16]}.txt"
    shell.write(lock, want.lock_text.encode())
    source: tuple[str, ...] = ("--default-index", want.index_url) if want.index_url else ()
    house = layout.wheelhouse_dir(want.lock_id)
    if want.wheelhouse:
        shell.push(want.wheelhouse.fetched(say), house, on_line=lambda line: say(f"wheels: {line.strip()}"))
        source = ("--offline", "--no-index", "--find-links", house)
    got = shell.run(
        ("sh", "-s", "--", env, want.python, uv, lock, layout.WORK, *source),
        timeout=_INSTALL_S,
        stdin=program("build_env.sh"),
        on_line=lambda line: say(line.removeprefix("eyas: ")),
        check=False,
    )
    if not got.ok:
        why = f"timed out after {_INSTALL_S} s" if got.exit in {124, 137} else got.tail()
        hint = next((h for words, h in _SAID if re.search(words, got.stderr, re.IGNORECASE)), "")
        raise ChangeFailed(f"the wheels were not installed: {why}", hint=hint, host=shell.host.name)
    new = layout.new_env_dir(want.lock_id)
    _prove(shell, want, new)
    shell.run(("python3", "-", new, env), timeout=600, stdin=program("place_env.py"))
    if want.wheelhouse:
        shell.run(("rm", "-rf", "--", house), timeout=300)


def _prove(shell: Shell, want: EnvWant, env: str) -> None:
    """Versions equal the lock, the engine imports, torch was built for the wanted CUDA."""
    missing = _missing_libraries(shell, want, env)
    if missing:
        packages = sorted({want.libraries[name] for name in missing})
        raise ChangeFailed(
            f"the engine needs {', '.join(missing)}, which this host lacks",
            hint=f"on the host: sudo apt-get install -y {' '.join(packages)}   then run this again",
            host=shell.host.name,
        )
    argv = (f"{env}/bin/python", "-", f"{env}/{PROOF}", want.lock_id, *want.imports)
    got = shell.run(argv, timeout=900, check=False, stdin=program("prove_env.py"))
    marked = [line for line in got.stdout.splitlines() if line.startswith("EYAS-PROOF ")]
    if not got.ok or not marked:
        raise ChangeFailed(
            f"{shlex.join(want.imports)} does not import from the new environment\n{got.tail()}",
            hint="the serving environment is untouched; `invoke doctor` reads the text above",
            host=shell.host.name,
        )
    found = json.loads(marked[-1].removeprefix("EYAS-PROOF "))
    wrong = [
        f"{name} {found['packages'].get(name)} instead of {version}"
        for name, version in want.versions.items()
        if found["packages"].get(name) != version
    ]
    if "torch" in want.imports and found.get("torch_cuda") != want.cuda:
        wrong.append(f"torch is built for CUDA {found.get('torch_cuda')}, wanted {want.cuda}")
    if wrong:
        raise ChangeFailed(
            "the environment is not what the lock says: " + "; ".join(wrong[:8]), host=shell.host.name
        )
    shell.run(("mv", "-f", "--", f"{env}/{PROOF}.new", f"{env}/{PROOF}"), timeout=20)


def _missing_libraries(shell: Shell, want: EnvWant, env: str) -> list[str]:
    """An engine without them imports with a warning and dies when it starts its worker."""
    argv = (f"{env}/bin/python", "-", *want.libraries)
    got = shell.run(argv, timeout=30, stdin=program("load_libraries.py"))
    return got.stdout.split()
