"""`invoke check-pair`: two names in, a verdict out; and what it says when one is not there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoke import Context
from invoke.exceptions import Exit

from checks.modelmeta import HubUnreachable
from surface import models
from tests.pair import hub as stand_in
from tests.pair.making import make

NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens there
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr("checks.modelmeta.hub_token", lambda: "hf_canary")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[stand_in.Hub]:
    with stand_in.serve() as running:
        running.repos["org/target"] = make(tmp_path / "hub" / "target")
        running.repos["org/eagle3-head"] = make(tmp_path / "hub" / "head", "eagle3")
        yield running


def run(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str]:
    """Exit code and stdout, with the error's text after it."""
    try:
        models.check_pair.body(Context(), **options)
    except Exit as e:
        return e.code, capsys.readouterr().out + (e.message or "")
    return 0, capsys.readouterr().out


def test_fits(hub: stand_in.Hub, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, target="org/target", draft="org/eagle3-head", endpoint=hub.url, json=True)
    assert code == 0
    assert json.loads(out) == {
        "schema": 1, "verdict": "ok", "method": "eagle3", "reasons": [], "alternatives": [], "notes": []
    }  # fmt: skip
    code, out = run(capsys, target="org/target", draft="org/eagle3-head", endpoint=hub.url)
    assert (code, out.split()[0]) == (0, "ok")


def test_refused(hub: stand_in.Hub, capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "target": "org/target",
        "draft": "org/eagle3-head",
        "endpoint": hub.url,
        "engine_version": "0.7.3",
    }
    code, out = run(capsys, **options, json=True)
    document = json.loads(out)
    assert (code, document["verdict"]) == (4, "refuse")
    assert document["reasons"][0]["slug"] == "spec-method-unsupported"
    assert document["alternatives"][-1]["method"] == "ngram"
    code, out = run(capsys, **options)
    assert code == 4
    assert "instead: " in out
    assert "hf_canary" not in out


@pytest.mark.parametrize(
    ("target", "draft", "says", "offers"),
    [
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "yuhuili/EAGLE-Qwen2.5-Coder-32B-Instruct", "No EAGLE head for",
         ["Qwen/Qwen2.5-Coder-7B-Instruct", None]),
        (LLAMA, "yuhu-ai/EAGLE-LLaMA3-70B-Instruct", "yuhuili/EAGLE-LLaMA3-Instruct-70B",
         ["yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"]),
        (LLAMA, "yuhuili/EAGLE-LLaMA3.3-Instruct-70B", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
         ["yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("endpoint", ["", NOBODY])
def test_names_of_blog_posts_without_a_network(
    endpoint: str, target: str, draft: str, says: str, offers: list[str | None],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not endpoint:
        monkeypatch.setattr(
            "checks.pairgate.lookup.load_model_meta", lambda *_, **__: pytest.fail("no look-up")
        )
    code, out = run(capsys, target=target, draft=draft, endpoint=endpoint, json=True)
    document = json.loads(out)
    assert code == 4
    assert document["reasons"][0]["slug"] == "spec-draft-missing"
    assert says in document["reasons"][0]["text"]
    named = [a["draft"] for a in document["alternatives"]]
    assert [n for n in named if n in offers] == offers


def test_a_hub_that_has_such_a_name_is_believed(
    hub: stand_in.Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "yuhuili/EAGLE-LLaMA3.3-Instruct-70B"
    hub.repos[name] = hub.repos["org/eagle3-head"]
    code, _ = run(capsys, target="org/target", draft=name, endpoint=hub.url)
    assert code == 0


def test_draft_that_is_not_on_the_hub(hub: stand_in.Hub, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, target=LLAMA, draft="yuhuili/EAGLE3-LLaMA3.3-70B", endpoint=hub.url, json=True)
    text = json.loads(out)["reasons"][0]["text"]
    assert code == 4
    assert "is not on http" in text
    assert "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B" in text


def test_target_that_is_not_on_the_hub(hub: stand_in.Hub, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, target="meta-llama/Llama3.3-70B", draft="org/eagle3-head", endpoint=hub.url)
    assert code == 4
    assert f"did you mean {LLAMA}" in out


@pytest.mark.parametrize("draft", ["yuhuili/EAGLE3-LLaMA3.3-70B", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"])
def test_nobody_could_look(draft: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Never a verdict: exit code 3, and a guess at the name only for one that no source knows."""
    code, out = run(capsys, target=LLAMA, draft=draft, endpoint=NOBODY, json=True)
    assert code == 3
    assert "cannot be reached" in out
    assert ("did you mean" in out) is (draft == "yuhuili/EAGLE3-LLaMA3.3-70B")
    assert "verdict" not in out


@pytest.mark.parametrize(
    ("target", "verdict"),
    [(LLAMA, "warn"), ("meta-llama/Meta-Llama-3-70B-Instruct", "ok"), ("org/unknown", "warn")],
)
def test_head_of_another_release(
    target: str, verdict: str, hub: stand_in.Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shapes agree; only the catalogue knows that the head was trained for another release."""
    head = "yuhuili/EAGLE-LLaMA3-Instruct-70B"
    hub.repos[target] = hub.repos["org/target"]
    hub.repos[head] = make(hub.repos["org/target"].parent / "eagle", "eagle")
    code, out = run(capsys, target=target, draft=head, endpoint=hub.url, json=True)
    document = json.loads(out)
    assert (code, document["verdict"]) == (0, verdict)
    assert [r["slug"] for r in document["reasons"]] == ["spec-low-acceptance"] * (verdict == "warn")


def test_hub_in_trouble(hub: stand_in.Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.fail["/"] = (500, {}, b"")
    code, out = run(capsys, target="org/target", draft="org/eagle3-head", endpoint=hub.url)
    assert (code, "failed: 500" in out) == (3, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "--target needs a model"),
        ({"target": "org/target"}, "--draft needs a model"),
        ({"target": "--help"}, "--target needs a model"),
        ({"target": "org/target", "draft": "gpt2"}, "not a repository name"),
        ({"target": "./none", "draft": "./none"}, "does not exist"),
        ({"engine": "trt"}, "--engine"),
        ({"engine_version": "0.5.0"}, "older than"),
        ({"engine_version": "latest"}, "not a version"),
        ({"method": "ngram"}, "takes no draft"),
        ({"tensor_parallel": "0"}, "--tensor-parallel '0'"),
        ({"tensor_parallel": "two"}, "--tensor-parallel 'two'"),
        ({"draft_tensor_parallel": "-1"}, "--draft-tensor-parallel"),
        ({"max_model_len": "1e4"}, "--max-model-len"),
        ({"max_model_len": "9" * 30}, "--max-model-len"),
    ],
)
def test_wrong_words(options: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, **options)
    assert (code, says in out) == (2, True), out


def test_unreachable_is_no_verdict() -> None:
    assert HubUnreachable.exit_code == 3
