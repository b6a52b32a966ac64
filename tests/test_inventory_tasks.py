"""The inventory tasks as a user runs them: exit codes, one JSON document, no traceback."""

import json
from pathlib import Path

import pytest
from invoke import Collection, Program

import tasks
from inventory.load import SHIPPED
from provision.show import masked

HOSTS = """
g:
  vars: {ansible_password: canary, api_token: canary, nest: {db_password: canary}, eyas_deployment: box}
  hosts:
    gpu[01:03]:
    odd: {ansible_host: 10.0.0.1, ansible_port: 2222}
"""


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = 0
    try:
        Program(namespace=Collection.from_module(tasks)).run(["invoke", *argv])
    except SystemExit as e:
        code = int(e.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "inventory" / "deployments"
    folder.mkdir(parents=True)
    (tmp_path / "inventory" / "hosts.yml").write_text(HOSTS)
    (folder / "box.yml").write_text("engine: vllm\ntarget: {repo: a/b}\n")
    return tmp_path


def test_hosts_as_json_is_one_document_without_secrets(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "hosts", "--limit", "g:!gpu03", "--json")
    document = json.loads(out)
    assert document["schema"] == 1
    assert [h["name"] for h in document["hosts"]] == ["gpu01", "gpu02", "odd"]
    assert [h["port"] for h in document["hosts"]] == [None, None, 2222]
    assert document["hosts"][0]["vars"]["ansible_password"] == "***"
    assert "canary" not in out


def test_hosts_as_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "hosts")
    assert [line.split() for line in out.splitlines()] == [
        ["HOST", "ADDRESS", "GROUPS", "DEPLOYMENT"],
        *(["gpu0" + n, "gpu0" + n, "g", "box"] for n in "123"),
        ["odd", "10.0.0.1:2222", "g", "box"],
    ]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["hosts", "--limit", ""], 2),
        (["hosts", "--limit", "!nobody"], 2),
        (["hosts", "--inventory", "none.yml"], 2),
        (["hosts", "--inventory", ""], 2),
        (["pin"], 2),
        (["pin", "--deployment", "bix"], 2),
        (["lock"], 2),
        (["lock", "--engine", "vllm"], 2),
    ],
)
def test_usage_errors_are_exit_2_and_json(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    got, out, _ = run(capsys, *argv, "--json")
    assert got == code
    document = json.loads(out)
    assert document["error"]
    assert document["hint"]


def test_deployments_lists_shipped_and_own_and_broken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "deployments", "--json")
    names = {d["name"] for d in json.loads(out)["deployments"]}
    assert names == {"box", *(p.stem for p in SHIPPED.glob("*.yml"))}
    assert code == 0
    (here / "inventory" / "deployments" / "bad.yml").write_text("engine: vlm\n")
    code, out, err = run(capsys, "deployments")
    assert "bad.yml:1: engine must be" in err
    assert "llama-3.1-8b-eagle3" in out
    assert code == 2


@pytest.mark.parametrize("task", ["hosts", "deployments", "pin", "lock"])
def test_help_explains_and_runs_nothing(here: Path, capsys: pytest.CaptureFixture[str], task: str) -> None:
    _, out, _ = run(capsys, task, "--help")
    assert "Docstring:" in out
    assert "--json" in out


def test_masking_reaches_every_depth() -> None:
    tree = {"a": [{"hub_token": "x", "key_file": "y"}], "ansible_ssh_pass": "x", "token": None, "author": "z"}
    assert masked(tree) == {
        "a": [{"hub_token": "***", "key_file": "y"}], "ansible_ssh_pass": "***", "token": None, "author": "z",
    }  # fmt: skip
