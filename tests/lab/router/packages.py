"""What routers are installed from: HAProxy by a lab host's own apt, sglang-router by its wheels."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from inventory.errors import CheckRefused
from inventory.locks import find_lock
from inventory.routers import load_routers
from provision.wheelhouse import wheelhouse_of
from tests.lab.assets.cache import build_once, cache_root
from tests.lab.hosts import Lab
from tests.lab.rootfs import apt_sources, ensure_rootfs, pick_release

__all__ = ["need_sglang_router", "offer_haproxy"]

_FIELDS = ("Package", "Version", "Architecture", "Depends", "Pre-Depends", "Provides", "Description")


def need_sglang_router() -> None:
    """Its wheels (40 MB) where `--push-wheels` takes them from; skips the test where pip can't get them."""
    try:
        wheelhouse_of(find_lock(f"{load_routers().sglang_router.lock}-cp311")).fetched(lambda _: None)
    except CheckRefused as e:
        pytest.skip(f"no wheels of sglang-router: {e.message}")


def offer_haproxy(lab: Lab, host: str) -> None:
    """Let apt on this host find HAProxy and what it needs that a lab host lacks."""
    folder = _packages()
    target = "/opt/eyas-lab/router"
    argv = ["ssh", *lab.ssh_args(host), "sudo", "sh", "-c", f"'mkdir -p {target} && tar -xC {target}'"]
    with subprocess.Popen(["tar", "-cC", str(folder), "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(argv, stdin=tar.stdout, check=True, capture_output=True)
    lab.host(host).write("/etc/apt/sources.list.d/router.list", f"deb [trusted=yes] file:{target} ./\n")


def _packages() -> Path:
    release = pick_release()
    root = ensure_rootfs(release, yes=True)
    return build_once(
        cache_root() / "lab" / f"haproxy-{root.name}", lambda out: _download(out, release, root)
    )


def _download(out: Path, release: str, root: Path) -> None:
    """By this machine's apt, with the lab host's list of what is installed."""
    with tempfile.TemporaryDirectory() as name:
        temp = Path(name)
        (temp / "sources.list").write_text(apt_sources(release))
        for folder in ("lists/partial", "cache/archives/partial"):
            (temp / folder).mkdir(parents=True)
        options = {
            "Dir::Etc::sourcelist": temp / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": temp / "lists",
            "Dir::State::status": root / "var/lib/dpkg/status",
            "Dir::Cache": temp / "cache",
            "APT::Sandbox::User": "root",
        }
        words = [w for k, v in options.items() for w in ("-o", f"{k}={v}")]
        for verb in (["update"], ["install", "--download-only", "--no-install-recommends", "-y", "haproxy"]):
            argv = ["apt-get", "-q", *words, *verb]
            subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "LC_ALL": "C"})
        found = sorted((temp / "cache/archives").glob("*.deb"))
        entries = [_entry(path, out) for path in found]
    (out / "Packages").write_text("\n".join(entries))


def _entry(path: Path, out: Path) -> str:
    data = path.read_bytes()
    name = path.name.replace("%", "_")
    (out / name).write_bytes(data)
    got = subprocess.run(["dpkg-deb", "-f", str(path), *_FIELDS], check=True, capture_output=True, text=True)
    digest = hashlib.sha256(data).hexdigest()
    return f"{got.stdout.strip()}\nFilename: ./{name}\nSize: {len(data)}\nSHA256: {digest}\n"
