"""Packages of the distribution for lab hosts, fetched once and installed by their own apt."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.lab.assets.cache import build_once, cache_root
from tests.lab.hosts import Lab
from tests.lab.rootfs import apt_sources, ensure_rootfs, pick_release

__all__ = ["offer"]

_FIELDS = ("Package", "Version", "Architecture", "Depends", "Pre-Depends", "Provides", "Description")


def offer(lab: Lab, host: str, package: str) -> None:
    """Let apt on this host find the package and what it needs that a lab host lacks."""
    folder = _packages(package)
    target = f"/opt/eyas-lab/{package}"
    argv = ["ssh", *lab.ssh_args(host), "sudo", "sh", "-c", f"'mkdir -p {target} && tar -xC {target}'"]
    with subprocess.Popen(["tar", "-cC", str(folder), "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(argv, stdin=tar.stdout, check=True, capture_output=True)
    lab.host(host).write(f"/etc/apt/sources.list.d/{package}.list", f"deb [trusted=yes] file:{target} ./\n")


def _packages(package: str) -> Path:
    release = pick_release()
    root = ensure_rootfs(release, yes=True)
    return build_once(
        cache_root() / "lab" / f"{package}-{root.name}", lambda out: _download(out, package, release, root)
    )


def _download(out: Path, package: str, release: str, root: Path) -> None:
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
        for verb in (["update"], ["install", "--download-only", "--no-install-recommends", "-y", package]):
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
