"""Pinning, against a stand-in of the hub's info route that the real client talks to."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import pytest

from inventory.errors import CheckRefused, EyasError, HostUnreachable, InventoryError, UsageError
from inventory.load import SHIPPED, load_deployment
from inventory.yamlfile import read_yaml
from provision.pin import Pinned, hub_commit, pin_deployment

COMMITS = {("org/model", "main"): "a" * 40, ("org/model", "dev"): "c" * 40, ("org/head", "main"): "b" * 40}
#: Repository -> status and headers of a refusal, as the client tells them apart.
REFUSALS = {
    "org/gated": (401, {"X-Error-Code": "GatedRepo"}),
    "org/denied": (403, {"X-Error-Code": "GatedRepo"}),
    "org/plain403": (403, {"X-Error-Message": "no"}),
    "org/missing": (404, {"X-Error-Code": "RepoNotFound"}),
    "org/badtoken": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "org/norev": (404, {"X-Error-Code": "RevisionNotFound"}),
    "org/busy": (429, {}),
    "org/broken": (500, {}),
}


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Model info at a revision; anything else is 404, which the client takes."""
        repo, _, revision = self.path.partition("?")[0].removeprefix("/api/models/").partition("/revision/")
        sha = COMMITS.get((repo, unquote(revision)), "not a commit" if repo == "org/odd" else "")
        status, headers = REFUSALS.get(repo, (200, {}) if sha else (404, {}))
        body = json.dumps({"id": repo, "sha": sha, "siblings": []}).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def hub(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("HF_ENDPOINT", server)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return server


FILE = """\
# Why this box exists.
engine: vllm
target:
  repo: org/model   # the target
  revision: main    # moves by itself
draft:
  method: eagle3
  num_speculative_tokens: 3
  model:
    repo: org/head
max_model_len: 4096
"""


def save(folder: Path, text: str = FILE) -> Path:
    path = folder / "box.yml"
    path.write_bytes(text.encode())
    return path


def test_pin_edits_two_lines_and_keeps_the_rest(hub: str, tmp_path: Path) -> None:
    path = save(tmp_path)
    path.chmod(0o640)
    pins = pin_deployment(path)
    assert pins == [
        Pinned("target", "org/model", "main", "a" * 40),
        Pinned("draft.model", "org/head", "main", "b" * 40),
    ]
    expected = FILE.replace("revision: main ", f"revision: {'a' * 40} ")
    expected = expected.replace("repo: org/head\n", f"repo: org/head\n    revision: {'b' * 40}\n")
    assert path.read_text() == expected
    assert path.stat().st_mode & 0o777 == 0o640
    deployment = load_deployment(path)
    assert deployment.target.pinned
    assert deployment.draft.model
    assert deployment.draft.model.pinned
    assert [p.changed for p in pin_deployment(path)] == [False, False]


def test_update_and_revision(hub: str, tmp_path: Path) -> None:
    path = save(tmp_path, FILE.replace("revision: main ", f"revision: '{'d' * 40}' "))
    assert not pin_deployment(path)[0].changed
    assert pin_deployment(path, update=True)[0].commit == "a" * 40
    path = save(tmp_path, FILE.replace("  model:\n    repo: org/head\n", "").replace("eagle3", "mtp"))
    assert [p.commit for p in pin_deployment(path, revision="dev")] == ["c" * 40]


def test_line_ends_and_last_line(hub: str, tmp_path: Path) -> None:
    text = "engine: vllm\r\ntarget:\r\n  revision: main\r\n  repo: org/model"
    path = save(tmp_path, text)
    pin_deployment(path)
    assert path.read_bytes().decode() == text.replace("main", "a" * 40)
    path = save(tmp_path, "engine: vllm\r\ntarget:\r\n  repo: org/model")
    pin_deployment(path)
    assert (
        path.read_bytes().decode()
        == f"engine: vllm\r\ntarget:\r\n  repo: org/model\r\n  revision: {'a' * 40}"
    )


@pytest.mark.parametrize(
    "target",
    ["{repo: org/model, revision: main}", "{repo: org/model}", "\n  revision:\n    main\n  repo: org/model"],
)
def test_a_line_that_cannot_be_edited_alone_is_left(hub: str, tmp_path: Path, target: str) -> None:
    path = save(tmp_path, f"engine: vllm\ntarget: {target}\n")
    before = path.read_bytes()
    with pytest.raises(InventoryError, match=r"box.yml:\d: cannot edit this line") as caught:
        pin_deployment(path)
    assert "a" * 40 in caught.value.hint
    assert path.read_bytes() == before


def test_nothing_is_written_when_one_model_is_refused(hub: str, tmp_path: Path) -> None:
    path = save(tmp_path, FILE.replace("org/head", "org/missing"))
    with pytest.raises(CheckRefused):
        pin_deployment(path)
    assert path.read_text() == FILE.replace("org/head", "org/missing")


def test_no_temporary_file_stays(hub: str, tmp_path: Path) -> None:
    pin_deployment(save(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["box.yml"]


@pytest.mark.parametrize(
    ("repo", "token", "kind", "says", "hint"),
    [
        ("org/gated", None, CheckRefused, "401: .* is gated", "export HF_TOKEN"),
        ("org/denied", "t", CheckRefused, "403: this token may not", "accept the terms"),
        ("org/plain403", "t", CheckRefused, "403: this token may not", "accept the terms"),
        ("org/missing", "t", CheckRefused, "404: no such repository", "correct the name"),
        ("org/missing", None, CheckRefused, "404: no such repository", "if it is private"),
        ("org/badtoken", "canary", CheckRefused, "401: the token is not valid", "new token"),
        ("org/norev", None, CheckRefused, "404: no such revision", "branch or tag"),
        ("org/busy", None, HostUnreachable, "429: the hub refuses more", "HF_TOKEN"),
        ("org/broken", None, HostUnreachable, "500 for", "try again"),
        ("org/odd", None, CheckRefused, "names no commit", "HF_ENDPOINT"),
        ("a/b/c", None, InventoryError, "not a repository name", "owner/name"),
    ],
)
def test_each_refusal_has_its_next_step(
    hub: str, repo: str, token: str | None, kind: type[EyasError], says: str, hint: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        hub_commit(repo, "main", token=token)
    assert hint in caught.value.hint
    assert "canary" not in str(caught.value)


def test_an_endpoint_that_is_down() -> None:
    with pytest.raises(HostUnreachable, match=r"no answer for org/model@main at http://127\.0\.0\.1:9"):
        hub_commit("org/model", "main", endpoint="http://127.0.0.1:9")


def test_a_token_file_that_is_missing(hub: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read hub_token"):
        pin_deployment(save(tmp_path, FILE + f"hub_token: file:{tmp_path}/none\n"))


def test_local_models_have_nothing_to_pin(hub: str, tmp_path: Path) -> None:
    assert pin_deployment(save(tmp_path, "engine: vllm\ntarget: {path: /data/model}\n")) == []


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yml")), ids=lambda p: p.stem)
def test_the_shipped_deployments_can_be_pinned(
    hub: str, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = load_deployment(path)
    for repo in (deployment.target.repo, deployment.draft.model and deployment.draft.model.repo):
        monkeypatch.setitem(COMMITS, (repo or "", "main"), "e" * 40)
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    assert all(p.changed for p in pin_deployment(copy))
    kept = [line for line in path.read_text().splitlines() if "revision" not in line]
    assert [line for line in copy.read_text().splitlines() if "revision" not in line] == kept
    assert read_yaml(copy).data != read_yaml(path).data
