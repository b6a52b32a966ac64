"""From what a host printed to HostFacts: banners before the marker, torn or oversized output, stray bytes."""

import json
from typing import Any

from checks.facts import HostFacts
from checks.probe.onhost.main import CAP, MARKER, SCHEMA
from inventory.errors import HostUnreachable

__all__ = ["decode", "without_python"]

#: Room for banners before and after the document.
LARGEST = CAP + (1 << 20)
TAIL_LINES = 5
INSTALL_PYTHON = {
    "debian": "sudo apt-get install -y python3",
    "ubuntu": "sudo apt-get install -y python3",
    "rhel": "sudo dnf install -y python3",
    "fedora": "sudo dnf install -y python3",
    "suse": "sudo zypper install -y python3",
    "alpine": "sudo apk add python3",
    "arch": "sudo pacman -S python",
}


def decode(stdout: bytes, host: str, taken_at: float, *, stderr: bytes = b"") -> HostFacts:
    """The facts in a probe's output.

    Raises HostUnreachable, with the last lines the host printed, when there is no whole document in it.
    """
    if len(stdout) > LARGEST:
        raise _unusable(host, f"its output is {len(stdout)} bytes, more than a probe prints", stdout, stderr)
    body = _body(stdout, host, stderr)
    try:
        tree = json.loads(body)
    except ValueError as e:
        raise _unusable(host, f"its document is damaged ({e})", stdout, stderr) from e
    if not isinstance(tree, dict) or not isinstance(tree.get("probe"), dict):
        raise _unusable(host, "its document is not a probe's", stdout, stderr)
    return HostFacts(host=host, taken_at=taken_at, tree=_clean(tree))


def without_python(stdout: bytes, host: str) -> HostUnreachable:
    """The refusal for a host without python3, from what pack.FALLBACK printed there."""
    said = [line.partition("=") for line in stdout.decode("utf-8", "replace").splitlines()]
    first = {key: value.strip() for key, _, value in reversed(said)}
    others = [value for key, _, value in said if key == "python"]
    system = (
        f"it runs {first.get('os') or 'an unknown system'}, {first.get('arch') or 'unknown architecture'}"
    )
    found = f"; it has {', '.join(others)}" if others else ""
    family = first.get("id", "")
    install = next((c for word, c in INSTALL_PYTHON.items() if word in family), "install python3 there")
    return HostUnreachable(
        f"cannot look at the host: it has no python3 ({system}{found})",
        host=host,
        hint=f"on {host}: {install}",
    )


def _body(stdout: bytes, host: str, stderr: bytes) -> bytes:
    """The document behind the last marker line; the marker says how long it is."""
    at = stdout.rfind(b"\n" + MARKER.encode() + b" ")
    if at < 0:
        raise _unusable(host, "the probe printed no document", stdout, stderr)
    head, _, rest = stdout[at + 1 :].partition(b"\n")
    words = head.split()
    if len(words) != 3 or not all(w.isdigit() for w in words[1:]):
        raise _unusable(host, "the probe's first line is damaged", stdout, stderr)
    if int(words[1]) > SCHEMA:
        raise _unusable(host, f"it answered with schema {int(words[1])}, not {SCHEMA}", stdout, stderr)
    size = int(words[2])
    if len(rest) < size:
        raise _unusable(host, f"only {len(rest)} of {size} bytes arrived", stdout, stderr)
    return rest[:size]


def _clean(tree: dict[str, Any]) -> dict[str, Any]:
    """Lone surrogates (a file name that isn't UTF-8) would break every later print."""
    text = json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
    cleaned: dict[str, Any] = json.loads(text)
    return cleaned


def _unusable(host: str, why: str, stdout: bytes, stderr: bytes) -> HostUnreachable:
    said = (stderr.strip() or stdout.strip()).decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
    last = "\n  ".join(line[:200] for line in said) or "(nothing)"
    return HostUnreachable(
        f"cannot look at the host: {why}\nit said:\n  {last}",
        host=host,
        hint=f"ssh {host} python3 -V   # must print Python 3.6 or newer, and nothing else may print on login",
    )
