"""One deployment, the argv of each release: golden argv, the way back, and what a release can't say."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inventory.catalogue import load_catalogue
from inventory.command import parse, render, render_env, spell
from inventory.errors import UsageError
from inventory.model import Deployment
from inventory.roles import Node, roles_of

CATALOGUE = load_catalogue()
FILE = tomllib.loads((Path(__file__).parent / "golden" / "command.toml").read_text(encoding="utf-8"))
TARGET = {"repo": "meta-llama/Llama-3.1-8B-Instruct"}
HEAD = {"repo": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}


def make(engine: str = "vllm", **fields: Any) -> Deployment:
    return Deployment.model_validate({"name": "x", "engine": engine, "target": TARGET, **fields})


def argv(version: str, engine: str = "vllm", **fields: Any) -> tuple[str, ...]:
    return render(make(engine, **fields), CATALOGUE.release(engine, version))


@pytest.mark.parametrize(
    "case", FILE["case"], ids=lambda c: f"{c['deployment']}-{c['engine']}-{c['version']}"
)
def test_golden(case: dict[str, Any]) -> None:
    fields = dict(FILE["deployment"][case["deployment"]])
    if case["engine"] == "sglang":
        fields.pop("extra_args", None)
    deployment = Deployment.model_validate({"name": case["deployment"], "engine": case["engine"], **fields})
    release = CATALOGUE.release(case["engine"], case["version"])
    assert list(render(deployment, release)) == case["argv"]


# --- the way back -----------------------------------------------------------------------------------------

WORDS = st.text("abcXYZ019-_./ \"'{}", min_size=1, max_size=12).filter(
    lambda t: t.strip() == t and t[0] != "-"
)
REPOS = st.from_regex(r"[A-Za-z0-9_.]{1,6}/[A-Za-z0-9_.-]{1,9}", fullmatch=True)
COUNTS = st.integers(1, 9)


@st.composite
def drafts(draw: st.DrawFn, engine: str) -> dict[str, Any]:
    method = draw(st.sampled_from(["none", "ngram", "draft_model", "eagle", "eagle3", "mtp", "suffix"]))
    if method == "none":
        return {}
    draft: dict[str, Any] = {"method": method}
    if method in {"draft_model", "eagle", "eagle3"}:
        draft["model"] = {"repo": draw(REPOS), "revision": draw(st.sampled_from(["main", "b" * 40]))}
    draft["num_speculative_tokens"] = draw(COUNTS)
    if method == "ngram" and draw(st.booleans()):
        draft |= {"prompt_lookup_max": 4, "prompt_lookup_min": draw(st.integers(1, 4))}
    if engine == "vllm" and draw(st.booleans()):
        draft["max_batch_size"] = draw(COUNTS)
    if engine == "sglang" and method not in {"ngram", "suffix"} and draw(st.booleans()):
        draft |= {"num_steps": 5, "topk": 4, "num_speculative_tokens": draw(st.integers(5, 60))}
    return {"draft": draft}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Deployment, str]:
    engine = draw(st.sampled_from(["vllm", "sglang"]))
    version = draw(st.sampled_from(CATALOGUE.releases(engine)))
    optional = {
        "served_model_name": WORDS, "dtype": WORDS, "quantization": WORDS, "kv_cache_dtype": WORDS,
        "max_model_len": COUNTS, "gpu_memory_utilization": st.floats(0.01, 1.0), "max_num_seqs": COUNTS,
        "max_num_batched_tokens": COUNTS, "enforce_eager": st.booleans(), "trust_remote_code": st.booleans(),
        "enable_prefix_caching": st.booleans(), "tensor_parallel": COUNTS, "port": st.integers(1, 65535),
        "disable_custom_all_reduce": st.booleans(),
    }  # fmt: skip
    fields = draw(st.fixed_dictionaries({"target": st.just(TARGET)}, optional=optional))
    return make(engine, **fields, **draw(drafts(engine))), version


@settings(max_examples=50, deadline=None)
@given(cases())
def test_parse_undoes_render(case: tuple[Deployment, str]) -> None:
    deployment, version = case
    release = CATALOGUE.release(deployment.engine, version)
    try:
        rendered = render(deployment, release)
    except UsageError:
        return
    parsed = parse(rendered, release)
    assert parsed.roles == roles_of(deployment, release)
    assert parsed.extra_args == ()
    assert spell(parsed.roles, release, spec_extra=parsed.spec_extra) == rendered


def test_extra_keys_and_args_come_back() -> None:
    release = CATALOGUE.release("vllm", "0.33.0")
    deployment = make(
        draft={
            "method": "eagle3",
            "model": HEAD,
            "num_speculative_tokens": 3,
            "extra": {"parallel_drafting": True},
        },
        extra_args=("--seed", "7", "--lora-modules", "a=b", "c=d", "--max-logprobs=5"),
    )
    parsed = parse(render(deployment, release), release)
    assert parsed.spec_extra == {"parallel_drafting": True}
    assert parsed.extra_args == deployment.extra_args


# --- what a release can't say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "version", "fields", "message", "hint"),
    [
        ("vllm", "0.8.1", {"draft": {"method": "eagle3", "model": HEAD, "num_speculative_tokens": 3}},
         "draft method eagle3", "0.8.5 to 0.33.0"),
        ("vllm", "0.12.0", {"draft": {"method": "draft_model", "model": HEAD, "num_speculative_tokens": 3}},
         "draft method draft_model", "0.6.2 to 0.9.2, 0.15.0 to 0.33.0"),
        ("vllm", "0.9.2", {"kv_cache_memory_bytes": 1}, "kv_cache_memory_bytes", "0.10.2 to 0.33.0"),
        ("vllm", "0.20.2", {"draft": {"method": "ngram", "num_speculative_tokens": 3, "max_batch_size": 8}},
         "max_batch_size", "0.24.0 to 0.33.0"),
        ("vllm", "0.33.0", {"draft": {"method": "eagle3", "model": HEAD, "num_steps": 5, "topk": 4}},
         "topk 4", "no catalogued"),
        ("vllm", "0.33.0", {"device": "cpu"}, "device cpu", "0.32.0"),
        ("sglang", "0.4.1", {"draft": {"method": "eagle", "model": HEAD, "num_speculative_tokens": 3}},
         "draft method eagle", "0.4.1.post7 to 0.5.23"),
        ("sglang", "0.5.23", {"draft": {"method": "suffix"}}, "draft method suffix", "no catalogued"),
        ("sglang", "0.5.23", {"kv_cache_memory_bytes": 1}, "kv_cache_memory_bytes", "no catalogued"),
        ("sglang", "0.5.23", {"distributed_executor_backend": "mp"}, "distributed_executor_backend", "leave"),
        ("sglang", "0.4.3.post4", {"pipeline_parallel": 2}, "pipeline_parallel", "0.4.6 to 0.5.23"),
    ],
)  # fmt: skip
def test_the_error_names_versions_that_can(
    engine: str, version: str, fields: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        argv(version, engine, **fields)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("engine", "version", "draft", "message"),
    [
        ("vllm", "0.33.0", {"method": "ngram"}, "needs num_speculative_tokens"),
        ("vllm", "0.33.0", {"method": "ngram", "num_steps": 2, "num_speculative_tokens": 7}, "don't fit"),
        ("sglang", "0.5.23", {"method": "eagle3", "model": HEAD, "topk": 4}, "needs num_steps"),
        ("sglang", "0.5.23", {"method": "eagle3", "model": HEAD, "num_steps": 2, "topk": 2,
                              "num_speculative_tokens": 9}, "up to 7"),
        ("sglang", "0.5.23", {"method": "eagle3", "model": HEAD, "num_steps": 9, "topk": 3}, "needs num"),
        ("vllm", "0.33.0", {"method": "mtp", "prompt_lookup_max": 3}, "belong to method ngram"),
        ("vllm", "0.33.0", {"method": "draft_model", "model": HEAD, "num_speculative_tokens": 3,
                            "tensor_parallel": 1}, "must have the target's"),
        ("vllm", "0.33.0", {"method": "eagle3", "model": HEAD, "num_speculative_tokens": 3,
                            "tensor_parallel": 2}, "tensor_parallel 2 with 4 ranks"),
        ("vllm", "0.7.3", {"method": "eagle", "model": HEAD, "num_speculative_tokens": 3,
                           "tensor_parallel": 4}, "EAGLE does not support TP"),
        ("vllm", "0.33.0", {"method": "mtp", "extra": {"speculative_token_tree": "[]"}}, "refuses the key"),
        ("vllm", "0.33.0", {"method": "mtp", "extra": {"method": "eagle"}}, "repeats method"),
        ("vllm", "0.7.3", {"method": "ngram", "num_speculative_tokens": 3, "extra": {"a": 1}}, "has no JSON"),
    ],
)  # fmt: skip
def test_drafts_the_engine_would_refuse(
    engine: str, version: str, draft: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        argv(version, engine, tensor_parallel=4, draft=draft)
    assert caught.value.hint


def test_eagle_before_0_8_2_gets_the_one_rank_it_needs() -> None:
    words = argv(
        "0.7.3", tensor_parallel=4, draft={"method": "eagle", "model": HEAD, "num_speculative_tokens": 3}
    )
    assert words[words.index("--speculative-draft-tensor-parallel-size") + 1] == "1"


def test_the_other_engine_s_release_is_refused() -> None:
    with pytest.raises(UsageError, match="wants vllm"):
        render(make(), CATALOGUE.release("sglang", "0.5.23"))


# --- paths, nodes, secrets, environment -------------------------------------------------------------------


def test_paths_stand_for_models_under_the_name_clients_use() -> None:
    deployment = make(
        draft={"method": "eagle3", "model": {**HEAD, "revision": "b" * 40}, "num_speculative_tokens": 3}
    )
    words = render(
        deployment, CATALOGUE.release("vllm", "0.33.0"), target_path="/w/target", draft_path="/w/draft"
    )
    assert words[2:5] == ("/w/target", "--served-model-name", TARGET["repo"])
    assert '"model":"/w/draft"' in words[-1]
    assert "revision" not in " ".join(words)


def test_pinned_revisions_are_said_where_the_hub_is_asked() -> None:
    words = argv("0.33.0", target={**TARGET, "revision": "a" * 40})
    assert words[3:5] == ("--revision", "a" * 40)


def test_nodes() -> None:
    fields: dict[str, Any] = {"nodes": 2, "tensor_parallel": 16}
    with pytest.raises(UsageError, match="which one is this command for"):
        argv("0.33.0", **fields)
    head = render(make(**fields), CATALOGUE.release("vllm", "0.33.0"), node=Node(0, "10.0.0.1"))
    second = render(make(**fields), CATALOGUE.release("vllm", "0.33.0"), node=Node(1, "10.0.0.1"))
    assert "--headless" not in head
    assert second[-1] == "--headless"
    other = render(make("sglang", **fields), CATALOGUE.release("sglang", "0.5.23"), node=Node(1, "h", 5000))
    assert other[other.index("--dist-init-addr") + 1] == "h:5000"
    assert argv("0.33.0", distributed="ray", **fields)[-2:] == ("--distributed-executor-backend", "ray")


@pytest.mark.parametrize(
    "words", [("--api-key", "k"), ("--api_key=k",), ("--hf-token", "t"), ("--admin-api-key", "a")]
)
def test_secrets_never_enter_argv(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="would show a secret"):
        argv("0.33.0", extra_args=words)


@pytest.mark.parametrize("words", [("--port", "9"), ("-tp", "2"), ("--tensor_parallel_size=2",)])
def test_extra_args_may_not_repeat_a_field(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="extra_args repeats"):
        argv("0.33.0", tensor_parallel=2, extra_args=words)


def test_environment() -> None:
    release = CATALOGUE.release("vllm", "0.32.0")
    assert render_env(make(env={"HF_HUB_OFFLINE": "0"}), release)["HF_HUB_OFFLINE"] == "0"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in render_env(make(tensor_parallel=2), release)
    cpu = render_env(make(device="cpu", tensor_parallel=2), release)
    assert cpu["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"


# --- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [(), ("ls",), ("vllm",), ("vllm", "bench", "x"), ("python", "-m", "http.server")]
)
def test_what_starts_no_server_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="starts no engine"):
        parse(words, CATALOGUE.release("vllm", "0.33.0"))


def test_older_flags_are_unknown_to_newer_releases() -> None:
    parsed = parse(
        ("vllm", "serve", "a", "--speculative-model", "b", "--swap-space", "4"),
        CATALOGUE.release("vllm", "0.33.0"),
    )
    assert parsed.extra_args == ("--speculative-model", "b", "--swap-space", "4")
    assert parsed.roles == {"model": "a"}
