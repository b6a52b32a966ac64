"""Workloads, strategies, the command line: what is asked for, and what is refused before all else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.bench.workloads import DOMAINS, domains, fitted, workload
from inventory.errors import EyasError, UsageError
from inventory.model import Deployment, Draft, ModelRef
from provision.bench.command import parse
from provision.bench.strategies import parse_drafts, parse_strategies, variant

WORDS: dict[str, Any] = {
    "concurrency": "",
    "workloads": "",
    "compare": "",
    "drafts": "",
    "against": "",
    "apply": False,
    "tune": True,
    "prompt_tokens": None,
    "output_tokens": None,
    "repeats": 10,
    "force": False,
}
TARGET = ModelRef(repo="meta-llama/Llama-3.1-8B-Instruct")
HEAD = Draft(method="eagle3", model=ModelRef(repo="a/head"), num_speculative_tokens=5, max_batch_size=16)
D = Deployment(name="chat", engine="vllm", target=TARGET, draft=HEAD)


def words(texts: list[str]) -> list[int]:
    """A server whose tokens are words."""
    return [len(t.split()) for t in texts]


# ---- prompts


@pytest.mark.parametrize("name", DOMAINS)
def test_prompts_have_the_stated_length_and_are_never_the_same(name: str) -> None:
    domain, load = domains()[name], workload(name)
    chars = fitted(domain, 1200, lambda texts: [len(t) // 3 for t in texts])
    assert 3400 <= chars <= 3800
    prompts = load.prompts({name: chars}, 8, "1.0")
    assert prompts == load.prompts({name: chars}, 8, "1.0")
    assert len({p[:40] for p in [*prompts, *load.prompts({name: chars}, 8, "1.1")]}) == 16
    assert all(len(p) == pytest.approx(chars, rel=0.02) for p in prompts)
    assert all(p.endswith(domain.tail) for p in prompts)


def test_code_takes_turns() -> None:
    found = workload("code").prompts({"python": 900, "typescript": 900}, 4, "x")
    assert [p.split()[0] for p in found] == ["[python", "[typescript", "[python", "[typescript"]


def test_a_length_below_the_question_is_refused_with_one_that_can_be() -> None:
    with pytest.raises(UsageError, match="question alone") as e:
        fitted(domains()["rag"], 20, lambda texts: words(list(texts)))
    assert "--prompt-tokens" in e.value.hint


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("p.txt", "one\n---\ntwo\n---\n\n", 2),
        ("p.txt", "one\r\n---\r\ntwo", 2),
        ("p.jsonl", '{"prompt": "one"}\n\n{"prompt": "two"}\n', 2),
    ],
)
def test_a_file_of_prompts_is_taken_as_it_is(tmp_path: Path, name: str, text: str, count: int) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    found = workload(str(path))
    assert len(found.domains[0].whole) == count
    assert fitted(found.domains[0], 1200, lambda _: pytest.fail("never counted")) == 0
    assert {p.splitlines()[-1] for p in found.prompts({name: 0}, 20, "a")} == {"one", "two"}


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("p.txt", b"", "no prompt"),
        ("p.txt", b"\xff\xfe", "cannot read"),
        ("p.jsonl", b"{}\n", "p.jsonl:1"),
        ("p.jsonl", b'{"prompt": 3}\n', "not a text"),
        ("p.jsonl", b"[\n", "no JSON object"),
    ],
)
def test_a_broken_file_of_prompts_is_named(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UsageError, match=why):
        workload(str(path))


# ---- the command line


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"concurrency": "1,x"}, "--concurrency"),
        ({"concurrency": "0"}, "--concurrency"),
        ({"concurrency": "99999"}, "--concurrency"),
        ({"concurrency": ","}, "--concurrency"),
        ({"workloads": "pyhton"}, "no workload and no file"),
        ({"compare": "none,eagle9"}, "no way to draft"),
        ({"drafts": "eagle3=a/b"}, "--compare"),
        ({"compare": "eagle3", "drafts": "eagle3"}, "not METHOD=REPO"),
        ({"compare": "eagle3", "drafts": "ngram=a/b"}, "not METHOD=REPO"),
        ({"compare": "eagle3", "drafts": "eagle3=a b"}, "neither owner/name"),
        ({"against": "yesterday"}, "not known"),
        ({"against": "baseline", "compare": "none"}, "looks at what serves"),
        ({"apply": True}, "--apply"),
        ({"repeats": 0}, "--repeats 0"),
        ({"output_tokens": 1}, "--output-tokens 1"),
        ({"prompt_tokens": -5}, "--prompt-tokens -5"),
    ],
)
def test_a_wrong_word_is_refused_with_a_hint(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as e:
        parse(**{**WORDS, **changes})
    assert e.value.hint


def test_the_usual_bench_and_a_comparison() -> None:
    usual = parse(**WORDS)
    assert usual.asked.concurrency == (1, 2, 4, 8, 16, 32)
    assert (usual.asked.prompt_tokens, usual.asked.output_tokens, usual.asked.exact) == (1200, 600, False)
    assert [w.name for w in usual.asked.workloads] == ["code"]
    assert not usual.asked.domains
    both = parse(**{**WORDS, "compare": "eagle3,ngram", "workloads": "sql", "concurrency": "8,1,8"})
    assert both.compare.strategies == ("none", "eagle3", "ngram")
    assert both.asked.concurrency == (1, 8)
    assert [w.name for w in both.asked.domains] == ["python", "typescript", "rag", "chat"]


# ---- strategies


def test_each_strategy_is_the_deployment_with_another_draft() -> None:
    own = variant(D, "eagle3", {}).draft
    assert (own.model, own.num_speculative_tokens) == (ModelRef(repo="a/head"), 5)
    assert own.max_batch_size is None, "where it should be off is what is measured"
    assert variant(D, "none", {}).draft == Draft()
    ngram = variant(D, "ngram", {}).draft
    assert (ngram.num_speculative_tokens, ngram.prompt_lookup_max) == (5, 4)
    named = variant(D, "eagle3", parse_drafts("eagle3=x/y@" + "a" * 40)).draft.model
    assert named
    assert (named.repo, named.revision) == ("x/y", "a" * 40)
    assert parse_drafts("draft_model=/srv/m")["draft_model"].path == "/srv/m"


def test_a_head_comes_from_the_known_pairs_or_is_asked_for() -> None:
    plain = D.model_copy(update={"draft": Draft()})
    found = variant(plain, "eagle3", {}).draft
    assert found.model
    assert "EAGLE3" in (found.model.repo or "")
    assert found.num_speculative_tokens == 3
    other = plain.model_copy(update={"target": ModelRef(repo="nobody/knows")})
    with pytest.raises(UsageError, match="is known") as e:
        variant(other, "eagle3", {})
    assert "--drafts eagle3=" in e.value.hint


def test_none_comes_first_and_words_count_once() -> None:
    assert parse_strategies("ngram, ngram") == ("none", "ngram")
    assert parse_strategies("ngram,none") == ("ngram", "none")


def test_errors_are_of_our_kind() -> None:
    calls: list[Callable[[], object]] = [
        lambda: parse_strategies(""),
        lambda: workload(""),
        lambda: workload("\0"),
        lambda: workload("a" * 5000),
    ]
    for call in calls:
        with pytest.raises(EyasError):
            call()
    assert json.dumps(parse_strategies("none")) == '["none"]'
