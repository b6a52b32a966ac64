"""The stand-in hub against plain HTTP, and against the unmodified client in a process of its own."""

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.hub import Access, Fault, Hub
from tests.lab.hub.__main__ import main as run_alone

WEIGHTS = bytes(range(256)) * 4096 * 12  # 12 MiB: more than one of the client's 10 MiB pieces

CLIENT = """
import concurrent.futures, json, sys
import huggingface_hub as hub
from huggingface_hub import errors
api = hub.HfApi()
home = sys.argv[1]

def fetch(repo, **how):
    folder = hub.snapshot_download(repo, local_dir=f"{home}/{repo}", **how)
    found = api.verify_repo_checksums(repo, revision=api.model_info(repo, **how).sha, local_dir=folder, **how)
    return {"mismatches": [m["path"] for m in found.mismatches], "missing": found.missing_paths,
            "checked": found.checked_count}

cases = {
    "sound": lambda: fetch("org/sound"),
    "cut": lambda: fetch("org/cut"),
    "flipped": lambda: fetch("org/flipped"),
    "short": lambda: fetch("org/short"),
    "limited": lambda: fetch("org/limited"),
    "paged": lambda: len(list(api.list_repo_tree("org/paged"))),
    "granted": lambda: fetch("org/gated", token="good"),
    "gated info": lambda: api.model_info("org/gated").id,
    "gated": lambda: hub.get_hf_file_metadata(hub.hf_hub_url("org/gated", "model.safetensors"), token=False),
    "not accepted": lambda: hub.get_hf_file_metadata(
        hub.hf_hub_url("org/gated", "model.safetensors"), token="other"),
    "bad token": lambda: api.model_info("org/sound", token="stolen"),
    "no repo": lambda: api.model_info("org/none"),
    "private": lambda: api.model_info("org/private"),
    "no revision": lambda: api.model_info("org/sound", revision="none"),
    "branch": lambda: [s.rfilename for s in api.model_info("org/sound", revision="dev").siblings],
    "no file": lambda: hub.hf_hub_download("org/sound", "none.json", cache_dir=home),
    "tensors": lambda: hub.get_safetensors_metadata("org/tensors").weight_map,
    "who": lambda: api.whoami("good")["name"],
}

def run(case):
    try:
        return {"value": case()}
    except Exception as e:
        response = getattr(e, "response", None)
        return {"error": type(e).__name__, "status": getattr(response, "status_code", None), "text": str(e)}

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(json.dumps(dict(zip(cases, pool.map(run, cases.values())))))
"""


@dataclass
class Visit:
    """What the client said of each case, and the hub as it was afterwards."""

    said: dict[str, dict[str, Any]]
    hub: Hub


def repository(root: Path, name: str, **files: bytes) -> None:
    for path, content in ({"config.json": b"{}"} | files).items():
        file = root / "org" / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    root, home = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("client")
    for name in ("sound", "cut", "flipped", "short", "limited", "gated", "private"):
        repository(root, name, **{"model.safetensors": WEIGHTS, "deep/er/notes.md": b"words"})
    repository(root, "sound@dev", **{"README.md": b"branch"})
    repository(root, "paged", **{f"{n:02}.txt": b"x" for n in range(24)})
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    repository(
        root, "tensors", **{"model.safetensors": len(header).to_bytes(8, "little") + header + b"\0" * 4}
    )
    access = Access({"good": "ada", "other": "bob"}, {"org/gated": ["ada"]}, {"org/private": ["ada"]})
    with Hub(root, access=access, page=10) as hub:
        hub.faults.add("GET /lfs/.*/org/cut/", cut_at=11 * 2**20, times=1)
        hub.faults.add("GET /lfs/.*/org/flipped/", flip_at=5_000_000)
        hub.faults.add("GET /lfs/.*/org/short/", truncate=1000)
        hub.faults.rate_limited("GET /api/models/org/limited/tree", seconds=0)
        env = {**os.environ, **hub.env, "HF_HOME": str(home / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        env.pop("HF_TOKEN", None)
        argv = [sys.executable, "-c", CLIENT, str(home)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        yield Visit(json.loads(done.stdout), hub)


@pytest.mark.process
@pytest.mark.parametrize(
    ("case", "value"),
    [
        ("sound", {"mismatches": [], "missing": [], "checked": 3}),
        ("cut", {"mismatches": [], "missing": [], "checked": 3}),
        ("limited", {"mismatches": [], "missing": [], "checked": 3}),
        ("granted", {"mismatches": [], "missing": [], "checked": 3}),
        # The client takes a flipped byte for good; only the hashes tell.
        ("flipped", {"mismatches": ["model.safetensors"], "missing": [], "checked": 3}),
        ("paged", 25),
        ("gated info", "org/gated"),
        ("branch", ["README.md", "config.json"]),
        ("tensors", {"w": "model.safetensors"}),
        ("who", "ada"),
    ],
)
def test_client_is_served(visit: Visit, case: str, value: object) -> None:
    assert visit.said[case] == {"value": value}


@pytest.mark.process
@pytest.mark.parametrize(
    ("case", "error", "status"),
    [
        ("gated", "GatedRepoError", 401),
        ("not accepted", "GatedRepoError", 403),
        ("bad token", "HfHubHTTPError", 401),
        ("no repo", "RepositoryNotFoundError", 401),
        ("private", "RepositoryNotFoundError", 401),
        ("no revision", "RevisionNotFoundError", 404),
        ("no file", "RemoteEntryNotFoundError", 404),
        ("short", "OSError", None),
    ],
)
def test_client_meets_the_error(visit: Visit, case: str, error: str, status: int | None) -> None:
    assert (visit.said[case].get("error"), visit.said[case].get("status")) == (error, status)


@pytest.mark.process
def test_a_cut_transfer_is_resumed_by_range(visit: Visit) -> None:
    assert [r.range for r in visit.hub.requests("GET /lfs/.*/org/cut/")] == ["", "bytes=10485760-"]


@pytest.mark.process
def test_the_cdn_never_sees_a_token(visit: Visit) -> None:
    granted = visit.hub.requests("GET /lfs/.*/org/gated/")
    assert granted
    assert not any(r.token for r in visit.hub.log if r.side == "cdn")


@pytest.mark.process
def test_bytes_are_counted(visit: Visit) -> None:
    assert visit.hub.sent("GET /lfs/.*/org/sound/") == len(WEIGHTS)


def fetch(url: str, method: str = "GET", data: Any = None, **headers: str) -> tuple[int, bytes]:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    repository(tmp_path, "m", **{"model.safetensors": b"0123456789"})
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "Some_Thing-1.0-py3-none-any.whl").write_bytes(b"wheel")
    with Hub(tmp_path, cdn=None, wheels=(wheels,)) as hub:
        yield hub


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=8-", 206, b"89"),
        ("bytes=-3", 206, b"789"),
        ("bytes=4-99", 206, b"456789"),
        ("bytes=10-", 416, b""),
        ("bytes=-", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
    ],
)
def test_ranges(hub: Hub, wanted: str, status: int, body: bytes) -> None:
    assert fetch(f"{hub.url}/mirror/org/m/model.safetensors", Range=wanted) == (status, body)


def test_a_changed_folder_is_another_commit(hub: Hub) -> None:
    info = f"{hub.url}/api/models/org/m"
    before = json.loads(fetch(info)[1])["sha"]
    assert fetch(f"{hub.url}/org/m/resolve/{before}/config.json")[0] == 200
    (hub.repos.root / "org/m/config.json").write_text("[]")
    assert json.loads(fetch(info)[1])["sha"] != before
    assert fetch(f"{hub.url}/org/m/resolve/{before}/config.json")[0] == 404


@pytest.mark.parametrize(
    "path", ["/org/m/resolve/main/../../../etc/passwd", "/api/models/../etc", "/%2e%2e/x"]
)
def test_nothing_outside_the_folder_is_served(hub: Hub, path: str) -> None:
    assert fetch(hub.url + path)[0] in {401, 404}


def test_faults_are_set_from_another_process(hub: Hub) -> None:
    control = f"{hub.url}/_lab/faults"
    assert fetch(control, "POST", [{"match": "GET /mirror/", "status": 503, "times": 1}])[0] == 200
    file = f"{hub.url}/mirror/org/m/config.json"
    assert [fetch(file)[0] for _ in range(2)] == [503, 200]
    assert json.loads(fetch(control)[1])[0]["times"] == 0
    assert fetch(control, "DELETE") == (200, b"[]")


@pytest.mark.parametrize(
    "rules", [[{"match": "x", "speed": 3}], [{"status": 3}], [{"match": "("}], 7, [{"match": "x", "rate": 0}]]
)
def test_a_wrong_fault_is_refused(hub: Hub, rules: object) -> None:
    status, body = fetch(f"{hub.url}/_lab/faults", "POST", rules)
    assert (status, "error" in json.loads(body)) == (400, True)
    assert hub.faults.dump() == []


def test_a_slow_link_is_slow(hub: Hub) -> None:
    hub.faults.add("GET /mirror/", rate=100)
    began = time.monotonic()
    assert fetch(f"{hub.url}/mirror/org/m/model.safetensors")[1] == b"0123456789"
    assert time.monotonic() - began >= 0.09
    assert hub.sent("model.safetensors") == 10


def test_the_package_index(hub: Hub) -> None:
    assert b'href="/simple/some-thing/"' in fetch(hub.index_url)[1]
    digest = hashlib.sha256(b"wheel").hexdigest()
    status, page = fetch(f"{hub.index_url}Some.Thing/")
    assert status == 200
    assert f"/files/Some_Thing-1.0-py3-none-any.whl#sha256={digest}" in page.decode()
    assert fetch(f"{hub.url}/files/Some_Thing-1.0-py3-none-any.whl") == (200, b"wheel")
    assert fetch(f"{hub.index_url}other/")[0] == 404


def test_a_fault_says_what_it_can_do() -> None:
    with pytest.raises(ValueError, match="unknown speed; a fault has match, times, status"):
        Fault.parse({"match": "x", "speed": 1})


def test_alone_a_missing_folder_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_alone(["--root", "/nonexistent"])
    assert "no such folder: /nonexistent" in capsys.readouterr().err
