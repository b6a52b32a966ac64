"""Commands as people find them: golden cases, the six of the blog posts too, and attempts to break it."""

import contextlib
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from inventory.catalogue import load_catalogue
from inventory.command import parse, render
from inventory.errors import EyasError, UsageError
from inventory.load import load_deployment
from inventory.snippet import LONGEST, read_snippet
from inventory.translate import Translation, translate
from inventory.translated import snippet_text, write_deployment

GOLDEN = tomllib.loads((Path(__file__).parent / "golden" / "translate.toml").read_text(encoding="utf-8"))[
    "case"
]
SIX = [c for c in GOLDEN if c["name"].split("-")[0] in "abcdef" and len(c["name"].split("-")[0]) == 1]


def run(case: dict[str, Any]) -> Translation:
    return translate(case["command"], engine=case["engine"], engine_version=case["version"])


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c["name"])
def test_golden(case: dict[str, Any]) -> None:
    found = run(case)
    assert list(found.argv) == case["argv"]
    assert [[n.kind, n.flag] for n in found.notes] == case["notes"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c["name"])
def test_argv_is_of_that_release_alone(case: dict[str, Any]) -> None:
    """What is given out reads back with nothing unknown but what the case kept on purpose."""
    release = load_catalogue().release(case["engine"], case["version"])
    found = run(case)
    parsed = parse(found.argv, release)
    assert set(parsed.extra_args) <= set(found.deployment.extra_args)
    assert parsed.roles["model"] in {found.deployment.target.repo, found.deployment.target.path}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c["name"])
def test_the_deployment_says_the_same_as_argv(case: dict[str, Any]) -> None:
    release = load_catalogue().release(case["engine"], case["version"])
    found = run(case)
    rendered = parse(render(found.deployment, release), release).roles
    said = parse(found.argv, release).roles
    assert {k: v for k, v in rendered.items() if k not in {"host", "port"}} == {
        k: v for k, v in said.items() if k not in {"host", "port"}
    }


def test_all_six_are_there_for_both_engines() -> None:
    assert {c["name"] for c in SIX} == {
        "a", "a-sglang", "b", "b-sglang", "c", "c-sglang", "d", "d-sglang", "e", "e-sglang", "f", "f-vllm",
    }  # fmt: skip


@pytest.mark.parametrize("case", SIX, ids=lambda c: c["name"])
def test_no_old_word_survives(case: dict[str, Any]) -> None:
    old = {"--speculative-model", "--num-speculative-tokens", "--ngram-prompt-lookup-max", "--tp",
           "--speculative-draft-tensor-parallel-size", "--speculative-draft", "[ngram]"}  # fmt: skip
    found = run(case)
    assert old & set(found.argv) == set()
    text = json.dumps(found.as_json()["argv"])
    assert "yuhu-ai" not in text
    assert "EAGLE-Qwen2.5" not in text


def test_json_document_has_exactly_these_keys() -> None:
    document = translate("vllm serve Qwen/Qwen3-8B --swap-space 4").as_json()
    assert set(document) == {"schema", "argv", "deployment", "notes"}
    assert all(set(n) == {"kind", "flag", "text"} for n in document["notes"])
    assert all(n["text"] for n in document["notes"])


# --- what people paste ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2",
        "vllm serve Qwen/Qwen3-8B --tensor_parallel_size=2",
        "vllm serve --model Qwen/Qwen3-8B -tp 2",
        "vllm serve -tp 2 Qwen/Qwen3-8B",
        "$ vllm serve Qwen/Qwen3-8B \\\n    --tensor-parallel-size 2",
        "$ vllm serve Qwen/Qwen3-8B \\\r\n>   --tensor-parallel-size 2\r\n",
        "vllm serve Qwen/Qwen3-8B \\  \n --tensor-parallel-size 2",
        "vllm serve Qwen/Qwen3-8B\n --tensor-parallel-size 2",
        "M=Qwen/Qwen3-8B\nTP=2\nvllm serve $M --tensor-parallel-size ${TP}",
        'vllm serve "Qwen/Qwen3-8B" --tensor-parallel-size "${TP:-2}" # two cards',
        "sudo -E nohup /opt/venv/bin/vllm serve Qwen/Qwen3-8B -tp 2 > log 2>&1 &",
        "cd /srv && source venv/bin/activate; vllm serve Qwen/Qwen3-8B -tp 2",
        "user@box:~$ vllm serve Qwen/Qwen3-8B –tensor-parallel-size 2",
        "```bash\nvllm serve Qwen/Qwen3-8B -tp 2\n```",
        "uv run --with vllm vllm serve Qwen/Qwen3-8B -tp 2",
        "env A=1 numactl --cpunodebind=0 vllm serve Qwen/Qwen3-8B -tp 2",
        "ExecStart=/opt/venv/bin/vllm serve Qwen/Qwen3-8B -tp 2",
        "docker run --gpus=all --shm-size 8g vllm/vllm-openai:latest --model Qwen/Qwen3-8B -tp 2",
        "docker run -d --gpus all vllm/vllm-openai:latest vllm serve Qwen/Qwen3-8B -tp 2",
        "python3.12 -m vllm.entrypoints.openai.api_server --model=Qwen/Qwen3-8B --tensor-parallel-size=2",
    ],
)
def test_every_way_to_write_the_same_command(text: str) -> None:
    argv = translate(text).argv
    assert argv == ("vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2")


def test_the_first_server_counts_and_its_environment() -> None:
    found = translate("export CUDA_VISIBLE_DEVICES=0,1 FOO=1\nNCCL_DEBUG=INFO vllm serve a/b\nvllm serve c/d")
    assert found.deployment.target.repo == "a/b"
    assert found.deployment.env == {"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO"}


def test_given_twice_the_last_counts() -> None:
    found = translate("vllm serve a/b --max-model-len 1k --max-model-len 16K")
    assert found.argv[-2:] == ("--max-model-len", "16384")
    assert ("other", "--max-model-len") in [(n.kind, n.flag) for n in found.notes]


def test_a_value_of_another_kind_is_kept_as_it_stands() -> None:
    found = translate("vllm serve a/b --max-model-len auto")
    assert found.deployment.extra_args == ("--max-model-len", "auto")


def test_lists_of_values_stay_together() -> None:
    found = translate("vllm serve a/b --lora-modules x=/x y=/y --port 9000")
    assert found.deployment.extra_args == ("--lora-modules", "x=/x", "y=/y")
    assert found.deployment.port == 9000


def test_several_nodes() -> None:
    text = "vllm serve a/b -tp 16 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless"
    found = translate(text)
    assert found.deployment.nodes == 2
    assert " ".join(found.argv).endswith(
        "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29501 --headless"
    )
    other = translate(text, engine="sglang").argv
    assert other[other.index("--dist-init-addr") + 1] == "10.0.0.1:29501"


def test_an_open_host_stays_in_argv_and_not_in_the_deployment() -> None:
    found = translate("vllm serve a/b --host 0.0.0.0")
    assert found.argv[-2:] == ("--host", "0.0.0.0")
    assert found.deployment.host == "127.0.0.1"


def test_a_head_for_another_target_is_named() -> None:
    found = translate(
        "vllm serve Qwen/Qwen3-8B --speculative-config "
        '\'{"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}\''
    )
    assert any("trained for meta-llama/Llama-3.1-8B-Instruct" in n.text for n in found.notes)
    assert found.deployment.draft.method == "eagle3"


# --- secrets ----------------------------------------------------------------------------------------------

CANARY = "sk-canary-0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve a/b --api-key {CANARY}",
        f"vllm serve a/b --api_key={CANARY}",
        f"HF_TOKEN={CANARY} vllm serve a/b",
        f"export VLLM_API_KEY={CANARY}\nvllm serve a/b --hf-token {CANARY}",
        f"docker run -e HUGGING_FACE_HUB_TOKEN={CANARY} vllm/vllm-openai --model a/b",
        f"python -m sglang.launch_server --model-path a/b --api-key {CANARY}",
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_secret_never_comes_out(text: str, engine: str, tmp_path: Path) -> None:
    found = translate(text, engine=engine, name="x")
    written = write_deployment(found.deployment, found.notes, tmp_path)
    assert CANARY not in json.dumps(found.as_json()) + written.read_text() + repr(found)


# --- writing ----------------------------------------------------------------------------------------------


def test_written_file_loads_and_is_never_overwritten(tmp_path: Path) -> None:
    case = next(c for c in GOLDEN if c["name"] == "f")
    found = translate(case["command"], name="mine")
    path = write_deployment(found.deployment, found.notes, tmp_path / "new")
    assert load_deployment(path) == found.deployment
    assert yaml.safe_load(path.read_text())["draft"]["topk"] == 4
    with pytest.raises(UsageError, match="not overwritten"):
        write_deployment(found.deployment, found.notes, tmp_path / "new")


def test_a_name_that_is_none() -> None:
    with pytest.raises(UsageError, match="name"):
        translate("vllm serve a/b", name="No Name")


# --- attempts to break it ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  \n\t", "empty"),
        ("# only a comment", "no command here"),
        ("ls -la", "no command here starts an engine"),
        ("pip install vllm>=0.6.2", "no command here"),
        ("vllm", "no command here"),
        ("vllm serve", "names no model"),
        ("vllm serve --tensor-parallel-size 2", "names no model"),
        ("vllm serve 'a/b", "never closed"),
        ('vllm serve a/b --speculative-config "{"', "not JSON"),
        ("vllm serve a/b --speculative-config {method:ngram}", "not JSON"),
        ("vllm serve a/b --speculative-config '[1]'", "not a JSON object"),
        ("vllm serve a/b --tensor-parallel-size", "has no value"),
        ("vllm serve a/b --tensor-parallel-size --port 1", "has no value"),
        ("vllm serve a/b --port 99999999", "makes no deployment"),
        ("vllm serve a/b --gpu-memory-utilization 7", "makes no deployment"),
        ("x" * (LONGEST + 1), "no command"),
        ("a" * 1_000_000, "no command"),
    ],
)
def test_bad_input_is_a_clear_error(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        translate(text)
    assert caught.value.hint


def test_wrong_engine_and_version() -> None:
    with pytest.raises(UsageError, match="unknown engine"):
        translate("vllm serve a/b", engine="tgi")
    with pytest.raises(UsageError, match="newer than this catalogue"):
        translate("vllm serve a/b", engine_version="9.9.9")


@given(st.text(max_size=200))
def test_no_text_makes_it_crash(text: str) -> None:
    for snippet in (text, "vllm serve a/b " + text, f"vllm serve a/b --speculative-config '{text}'"):
        try:
            translate(snippet)
        except EyasError:
            continue


@given(st.lists(st.text(min_size=1, max_size=20).filter(lambda t: "\x00" not in t), min_size=1, max_size=6))
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    plain = [w for w in words if not any(c in w for c in "“”„‘’\u00a0\u200b\ufeff\r\n\u2013\u2014`")]
    if not plain:
        return
    assert list(read_snippet("x " + shlex.join(plain)).commands[0].words) == ["x", *plain]


@pytest.mark.parametrize(
    "part", ["a 'b' ", "\\\n--x y", "(", "$", "${", "${a-", '"\\', "$(", "`", "<<", "\n"]
)
def test_hard_snippets_take_linear_time(part: str) -> None:
    """Four times the text in no more than about eight times the time: a square would be sixteen."""
    import time

    def seconds(text: str) -> float:
        start = time.process_time()
        with contextlib.suppress(UsageError):
            read_snippet(text)
        return time.process_time() - start

    short, long = (part * (size // len(part)) for size in (2_500, 10_000))
    assert any(seconds(long) < 8 * seconds(short) + 0.1 for _ in range(3))


def test_where_the_text_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    path = tmp_path / "cmd.sh"
    path.write_text("vllm serve a/b")
    assert snippet_text(None, str(path)) == "vllm serve a/b"
    assert snippet_text("x", None) == "x"
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin"))
    assert snippet_text(None, "-") == "from stdin"
    for wrong in ((None, None), ("a", "b")):
        with pytest.raises(UsageError, match="one of them"):
            snippet_text(*wrong)
    with pytest.raises(UsageError, match="can't read"):
        snippet_text(None, str(tmp_path / "no"))
    (tmp_path / "bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="can't read"):
        snippet_text(None, str(tmp_path / "bin"))
