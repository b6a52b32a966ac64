"""The catalogue of published drafts, and what it answers for names that don't exist."""

import pytest

from inventory.pairs import base_name, load_pairs

PAIRS = load_pairs()
CODER = "Qwen/Qwen2.5-Coder-32B-Instruct"


def test_every_row_is_whole() -> None:
    assert len(PAIRS.pairs) == 70
    for pair in PAIRS.pairs:
        assert pair.target.count("/") == pair.draft.count("/") == 1, pair
        assert pair.source, pair
        assert pair.method in {"eagle", "eagle3", "dflash", "dspark"}, pair
        assert pair.engines, pair
        assert set(pair.engines) <= {"vllm", "sglang"}, pair


def test_nothing_is_both_published_and_missing() -> None:
    for missing in PAIRS.missing_repos:
        assert not PAIRS.known(missing.repo)
        assert all(PAIRS.known(name) for name in (*missing.nearest, *missing.fits))
        assert all(PAIRS.for_draft(name) for name in missing.fits)
        assert missing.text
        assert missing.source


@pytest.mark.parametrize(
    ("repo", "first", "fallback"),
    [
        ("yuhuili/EAGLE-Qwen2.5-Coder-32B-Instruct", "Zjcxy-SmartAI/Eagle-Qwen2.5-14B-Instruct", "ngram"),
        ("yuhuili/EAGLE-Qwen2.5-Coder-7B-Instruct", "yuhuili/EAGLE-Qwen2-7B-Instruct", "ngram"),
        ("yuhu-ai/EAGLE-LLaMA3-70B-Instruct", "yuhuili/EAGLE-LLaMA3-Instruct-70B", "eagle3"),
        ("yuhuili/EAGLE-LLaMA3.3-Instruct-70B", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "eagle3"),
    ],
)
def test_names_of_blog_posts(repo: str, first: str, fallback: str) -> None:
    missing = PAIRS.missing(repo.upper())
    assert missing
    assert (missing.nearest[0], missing.fallback) == (first, fallback)
    assert PAIRS.nearest(repo)[0] == first


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("yuhuili/EAGLE3-LLaMA3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
        ("RedHat/Qwen3-32B-speculator.eagle3", "RedHatAI/Qwen3-32B-speculator.eagle3"),
        ("AngelSlim/Qwen3-8B-eagle3", "AngelSlim/Qwen3-8B_eagle3"),
        ("meta-llama/Llama3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("nvidia/gpt-oss-120B-eagle3", "nvidia/gpt-oss-120b-Eagle3"),
    ],
)
def test_nearest(typed: str, meant: str) -> None:
    assert PAIRS.nearest(typed)[0] == meant


@pytest.mark.parametrize("repo", ["x/y", "", "a/zzzz", "🦅/🦅"])
def test_no_neighbour_is_invented(repo: str) -> None:
    assert PAIRS.nearest(repo) == ()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", True),
        ("Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B", True),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "meta-llama/Llama-3.3-70B-Instruct", True),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "meta-llama/Llama-3.1-8B-Instruct", True),
        ("neuralmagic/Meta-Llama-3-8B-Instruct-quantized.w8a8", "meta-llama/Meta-Llama-3-8B-Instruct", True),
        ("/models/Qwen3-8B", "Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Instruct-2507", False),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", False),
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Meta-Llama-3-70B-Instruct", False),
    ],
)
def test_same_model(one: str, other: str, same: bool) -> None:
    assert PAIRS.same_model(one, other) is same
    assert PAIRS.same_model(other, one) is same


def test_look_ups() -> None:
    heads = PAIRS.for_target("unsloth/Llama-3.3-70B-Instruct")
    assert heads[0].draft == "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"
    drafts = [p.draft for p in PAIRS.for_target("openai/gpt-oss-120b")]
    assert len(drafts) == len(set(drafts)), "a draft named by two sources is offered once"
    assert PAIRS.for_target(CODER) == ()
    assert [s.draft for s in PAIRS.small_drafts(CODER)] == ["Qwen/Qwen2.5-Coder-7B-Instruct"]
    assert PAIRS.for_target("Qwen/Qwen2-7B-Instruct", "vllm") == ()
    assert PAIRS.for_target("Qwen/Qwen2-7B-Instruct", "sglang")


def test_base_name() -> None:
    assert base_name("x/Llama_3.1.8B-Instruct-GPTQ-Int4/") == "llama-3-1-8b-instruct"
    assert base_name("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8") == "qwen3-next-80b-a3b-instruct"
