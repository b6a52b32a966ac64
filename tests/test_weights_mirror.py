"""A model behind a plain web server: listed, verified, resumed."""

import functools
import hashlib
import http.server
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import CheckRefused
from inventory.model import ModelRef
from provision.programs import FOLDER
from provision.weights import Manifest, manifest_of


class Ranged(http.server.SimpleHTTPRequestHandler):
    """Python's file server with the one thing it lacks, byte ranges."""

    asked: list[str]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        self.asked.append(f"{path.name} {wanted or ''}".strip())
        if not wanted or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        end = min(int(last or len(data) - 1), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end + 1 - int(first)))
        self.end_headers()
        self.wfile.write(data[int(first) : end + 1])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    )
    header = json.dumps({"w": {"dtype": "F32", "shape": [4096], "data_offsets": [0, 16384]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16384))
    asked: list[str] = []
    handler = type("Handler", (Ranged,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder, asked
    server.shutdown()
    server.server_close()


def sums(folder: Path) -> None:
    files = [p for p in folder.iterdir() if p.name != "SHA256SUMS"]
    text = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in files)
    (folder / "SHA256SUMS").write_text(text)


def fetched(manifest: Manifest, url: str, dest: Path) -> dict[str, Any]:
    request = {"url": url, "commit": manifest.commit, "dest": str(dest)}
    request |= {"files": [f.as_dict() for f in manifest.files]}  # type: ignore[dict-item]
    done = subprocess.run(
        [sys.executable, "-sEB", str(FOLDER / "fetch.py"), "fetch"],
        input=json.dumps(request), capture_output=True, text=True, check=False,
    )  # fmt: skip
    last: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return last


def test_without_hashes_nothing_is_proven(mirror: tuple[str, Path, list[str]]) -> None:
    with pytest.raises(CheckRefused, match="can't be verified"):
        manifest_of(ModelRef(url=mirror[0]), endpoint=None, token=None)


@pytest.mark.process
def test_fetched_verified_and_resumed(mirror: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    url, folder, asked = mirror
    sums(folder)
    manifest = manifest_of(ModelRef(url=url), endpoint=None, token=None)
    assert {f.path for f in manifest.files} == {"config.json", "model.safetensors"}
    dest = tmp_path / "weights" / "commit"
    partial = dest.with_name("commit.partial")
    partial.mkdir(parents=True)
    (partial / "model.safetensors.eyas-part").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    asked.clear()
    assert fetched(manifest, url, dest) == {"ok": True}
    assert "model.safetensors bytes=5000-" in asked
    assert (dest / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.process
def test_a_mirror_that_changes_bytes_is_found_out(
    mirror: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    url, folder, _ = mirror
    sums(folder)
    manifest = manifest_of(ModelRef(url=url), endpoint=None, token=None)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    last = fetched(manifest, url, tmp_path / "w" / "c")
    assert last["error"] == "corrupt"
    assert not (tmp_path / "w" / "c").exists()
