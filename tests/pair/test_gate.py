"""Every rule of the gate, firing and quiet, on small real files; and the pairs that real engines refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from checks.modelmeta import load_model_meta
from checks.pairgate import PairVerdict, PairWant, check_pair
from checks.pairgate.catalogue import ROLES, registry, roles_of
from inventory.errors import UsageError
from inventory.model import ModelRef
from tests.pair.making import make, tokenizer

QWEN: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "model_type": None,
    "eagle_config": None,
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 448,
    "speculators_config": {
        "proposal_methods": [{"speculative_tokens": 3}],
        "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct"},
    },
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 448,
        "max_position_embeddings": 2048,
    },
}
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4}}


def compressed(bits: int) -> dict[str, Any]:
    groups = {"group_0": {"input_activations": {"num_bits": 8}, "weights": {"num_bits": bits}}}
    scheme = {
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": {"num_bits": 8},
        "config_groups": groups,
    }
    return {"quantization_config": scheme}


FP8 = {"quantization_config": {"quant_method": "fp8"}}


@dataclass(frozen=True)
class T:
    """One pair: what differs from a pair that fits, and the slugs that must come out."""

    name: str
    base: str
    slugs: tuple[str, ...] = ()
    target: Mapping[str, Any] = field(default_factory=dict)
    draft: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    want: PairWant = field(default_factory=PairWant)
    verdict: str = ""
    error: str = ""
    tokens: tuple[int, int] | None = None


def vllm(version: str, **more: Any) -> PairWant:
    return PairWant(version=version, **more)


def sglang(version: str, **more: Any) -> PairWant:
    return PairWant(engine="sglang", version=version, **more)


WIDE = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
}

CASES = [
    # pairs that fit, as served by vLLM 0.32.0 on a CPU
    T("eagle fits", "eagle", want=PairWant(method="eagle")),
    T("eagle3 fits", "eagle3"),
    T("draft model fits", "draft_model"),
    T("eagle3 fits at tp 2", "eagle3", want=PairWant(tensor_parallel=2)),
    T("speculators fits", "eagle3", draft=SPECULATORS),
    # method
    T("method is another", "eagle3", ("spec-weights-layout",), want=PairWant(method="eagle")),
    T("method of a bare model", "draft_model", ("spec-weights-layout",), want=PairWant(method="eagle3")),
    T(
        "draft model refused",
        "draft_model",
        ("spec-method-unsupported",),
        want=vllm("0.12.0"),
        error="draft model",
    ),
    T("draft model again", "draft_model", want=vllm("0.17.1")),
    T("eagle3 too new", "eagle3", ("spec-method-unsupported",), want=vllm("0.7.3")),
    T("sglang standalone too new", "draft_model", ("spec-method-unsupported",), want=sglang("0.4.6.post5")),
    T("sglang standalone", "draft_model", want=sglang("0.5.23")),
    # class
    T(
        "no EAGLE class for Qwen2",
        "eagle",
        ("spec-arch-unsupported",),
        target=QWEN,
        draft=QWEN,
        error="Model architectures ['EagleQwen2ForCausalLM'] are not supported for now",
    ),
    T("Llama-shaped EAGLE for Qwen2", "eagle", target=QWEN),
    T(
        "sglang has Qwen2 EAGLE",
        "eagle",
        target=QWEN,
        draft={"architectures": ["Qwen2ForCausalLMEagle"]},
        want=sglang("0.5.23"),
    ),
    T("sglang needs the name", "eagle", ("spec-arch-unsupported",), want=sglang("0.5.23", method="eagle")),
    T(
        "eagle3 suffix in 0.9",
        "eagle3",
        ("spec-arch-unsupported",),
        want=vllm("0.9.2"),
        error="Eagle3LlamaForCausalLMEagle3",
    ),
    T(
        "eagle3 plain name in 0.9",
        "eagle3",
        draft={"architectures": ["LlamaForCausalLM"]},
        want=vllm("0.9.2"),
    ),
    T(
        "qwen3 head in 0.23",
        "eagle3",
        ("spec-arch-unsupported",),
        draft={"architectures": ["Qwen3ForCausalLM"]},
        want=vllm("0.23.0"),
    ),
    T("qwen3 head in 0.25", "eagle3", draft={"architectures": ["Qwen3ForCausalLM"]}, want=vllm("0.25.1")),
    T("old format", "eagle", ("spec-weights-layout",), want=vllm("0.7.3"), verdict="refuse"),
    T(
        "old format converted",
        "eagle",
        draft={"model_type": "eagle", "model": {"hidden_size": 256}},
        want=vllm("0.7.3"),
    ),
    # speculators
    T("speculators too new", "eagle3", ("spec-arch-unsupported",), draft=SPECULATORS, want=vllm("0.9.2")),
    T(
        "speculators qwen3 layer",
        "eagle3",
        ("spec-arch-unsupported",),
        want=vllm("0.23.0"),
        draft=SPECULATORS
        | {"transformer_layer_config": SPECULATORS["transformer_layer_config"] | {"model_type": "qwen3"}},
    ),
    T(
        "speculators broken",
        "eagle3",
        ("spec-weights-layout",),
        draft=SPECULATORS | {"speculators_config": {}},
        error="Invalid speculators config structure",
    ),
    # target class
    T(
        "target type",
        "eagle3",
        ("spec-target-unsupported",),
        target={"model_type": "gemma3"},
        want=vllm("0.14.1"),
        draft={"architectures": ["LlamaForCausalLM"]},
        error="Eagle3 is only supported for",
    ),
    T(
        "target class",
        "eagle3",
        ("spec-target-unsupported",),
        target={"architectures": ["GPT2LMHeadModel"]},
        error="Model does not support EAGLE3 interface",
    ),
    T(
        "qwen3 moe target",
        "eagle3",
        target={"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
    ),
    T("qwen target since 0.10", "eagle3", target=QWEN, want=vllm("0.10.2")),
    # layout
    T("no fc", "eagle3", ("spec-weights-layout",), tensors={"fc.weight": None}),
    T(
        "no layer",
        "eagle",
        ("spec-weights-layout",),
        tensors={"layers.0.self_attn.q_proj.weight": None},
        want=PairWant(method="eagle"),
    ),
    T(
        "layers.0 instead of midlayer",
        "eagle3",
        tensors={"midlayer.self_attn.q_proj.weight": None, "layers.0.self_attn.q_proj.weight": (256, 512)},
    ),
    T(
        "first norm",
        "eagle",
        ("spec-weights-layout",),
        tensors={"layers.0.input_layernorm.weight": (256,)},
        want=PairWant(method="eagle"),
    ),
    T(
        "strange tensor",
        "eagle3",
        ("spec-weights-layout",),
        tensors={"value_head.weight": (1, 256)},
        verdict="warn",
    ),
    T(
        "fc bias",
        "eagle",
        ("spec-weights-layout",),
        tensors={"fc.bias": (256,)},
        want=PairWant(method="eagle"),
    ),
    T(
        "fc bias in sglang",
        "eagle",
        tensors={"fc.bias": (256,)},
        draft={"architectures": ["LlamaForCausalLMEagle"]},
        want=sglang("0.5.23"),
    ),
    # widths
    T(
        "eagle hidden size",
        "eagle",
        ("spec-hidden-size-mismatch",),
        target=WIDE,
        want=PairWant(method="eagle"),
        error="The size of tensor a (256) must match the size of tensor b (512)",
    ),
    T("eagle3 target hidden size", "eagle3", ("spec-hidden-size-mismatch",), target=WIDE),
    T(
        "narrow eagle3 head",
        "eagle3",
        target=WIDE,
        draft={"target_hidden_size": 512},
        tensors={"fc.weight": (256, 1536), "embed_tokens.weight": (448, 256)},
    ),
    T(
        "narrow head shares embedding",
        "eagle3",
        ("spec-hidden-size-mismatch",),
        target=WIDE,
        draft={"target_hidden_size": 512},
        tensors={"fc.weight": (256, 1536)},
    ),
    T(
        "narrow head in 0.9.0",
        "eagle3",
        ("spec-hidden-size-mismatch",),
        target=WIDE,
        want=vllm("0.9.0"),
        draft={"target_hidden_size": 512, "architectures": ["LlamaForCausalLM"]},
        tensors={"fc.weight": (256, 1536), "embed_tokens.weight": (448, 256)},
    ),
    T(
        "fc for two layers",
        "eagle3",
        ("spec-weights-layout",),
        draft={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
        error="weights of size torch.Size([256, 768])to a parameter of size torch.Size([256, 512])",
    ),
    T("four layers", "eagle3", draft={"num_aux_hidden_states": 4}, tensors={"fc.weight": (256, 1024)}),
    T(
        "four layers in 0.17",
        "eagle3",
        ("spec-weights-layout",),
        draft={"num_aux_hidden_states": 4},
        tensors={"fc.weight": (256, 1024)},
        want=vllm("0.17.1"),
    ),
    T("fc output", "eagle3", ("spec-hidden-size-mismatch",), tensors={"fc.weight": (128, 768)}),
    T("head_dim", "eagle3", ("spec-weights-layout",), draft={"head_dim": 32}),
    T(
        "attention input",
        "eagle3",
        ("spec-weights-layout",),
        tensors={"midlayer.self_attn.q_proj.weight": (256, 256)},
    ),
    # vocabulary
    T(
        "draft model vocabulary",
        "draft_model",
        ("spec-vocab-mismatch",),
        draft={"vocab_size": 896},
        error="Target model vocab_size=448. Draft model vocab_size=896.",
    ),
    T("padding counts", "draft_model", ("spec-vocab-mismatch",), draft={"vocab_size": 449}),
    T(
        "head vocabulary",
        "eagle",
        ("spec-vocab-mismatch",),
        draft={"vocab_size": 896},
        want=PairWant(method="eagle"),
    ),
    T(
        "draft vocabulary with d2t",
        "eagle3",
        draft={"draft_vocab_size": 100},
        tensors={"lm_head.weight": (100, 256), "d2t": (100,), "t2d": (448,)},
    ),
    T(
        "draft vocabulary without d2t",
        "eagle3",
        ("spec-vocab-mismatch",),
        draft={"draft_vocab_size": 100},
        tensors={"lm_head.weight": (100, 256)},
    ),
    T(
        "d2t of another size",
        "eagle3",
        ("spec-vocab-mismatch",),
        draft={"draft_vocab_size": 100},
        tensors={"lm_head.weight": (100, 256), "d2t": (99,)},
    ),
    T(
        "t2d of another size",
        "eagle3",
        ("spec-vocab-mismatch",),
        draft={"draft_vocab_size": 100},
        verdict="warn",
        tensors={"lm_head.weight": (100, 256), "d2t": (100,), "t2d": (447,)},
    ),
    T("lm_head of another size", "eagle3", ("spec-vocab-mismatch",), tensors={"lm_head.weight": (100, 256)}),
    T(
        "no lm_head",
        "eagle3",
        ("spec-vocab-mismatch",),
        draft={"draft_vocab_size": 100},
        tensors={"lm_head.weight": None, "d2t": (100,)},
    ),
    T("lm_head shared", "eagle3", tensors={"lm_head.weight": None}),
    T("same tokenizer", "draft_model", tokens=(0, 0)),
    T("another tokenizer", "draft_model", ("spec-vocab-mismatch",), tokens=(0, 7)),
    T("head with another tokenizer", "eagle3", ("spec-vocab-mismatch",), tokens=(0, 7), verdict="warn"),
    # parallelism
    T(
        "heads",
        "eagle3",
        ("tp-heads-indivisible",),
        target={"num_attention_heads": 6, "hidden_size": 256},
        want=PairWant(tensor_parallel=4),
        error="Total number of attention heads (6) must be divisible by",
    ),
    T(
        "kv heads",
        "eagle3",
        ("tp-kv-heads-indivisible",),
        want=PairWant(tensor_parallel=2),
        target={"num_key_value_heads": 3, "num_attention_heads": 12},
    ),
    T("kv heads repeat", "eagle3", want=PairWant(tensor_parallel=4)),
    T(
        "draft tp 3",
        "eagle3",
        ("tp-draft-size-invalid",),
        want=PairWant(tensor_parallel=2, draft_tensor_parallel=3),
        error="speculative_draft_tensor_parallel_size=3 cannot be other value than 1",
    ),
    T("draft tp 1 has no effect", "eagle3", want=PairWant(tensor_parallel=2, draft_tensor_parallel=1)),
    T(
        "draft model tp 1",
        "draft_model",
        ("tp-draft-size-invalid",),
        want=PairWant(tensor_parallel=2, draft_tensor_parallel=1),
        error="must be the same. Got 1 and 2.",
    ),
    T("draft model tp equal", "draft_model", want=PairWant(tensor_parallel=2, draft_tensor_parallel=2)),
    T(
        "old engine head on two",
        "eagle",
        ("tp-draft-size-invalid",),
        draft={"model_type": "eagle"},
        want=vllm("0.7.3", tensor_parallel=2),
        error="does not support TP > 1 yet",
    ),
    T(
        "old engine head on one",
        "eagle",
        draft={"model_type": "eagle"},
        want=vllm("0.7.3", tensor_parallel=2, draft_tensor_parallel=1),
    ),
    T(
        "oldest engine draft on two",
        "draft_model",
        ("tp-draft-size-invalid",),
        want=vllm("0.6.2", tensor_parallel=2, draft_tensor_parallel=2),
    ),
    T(
        "pipeline in 0.23",
        "eagle3",
        ("spec-method-unsupported",),
        want=vllm("0.23.0", pipeline_parallel=2),
        error="EAGLE3 with pipeline parallel is not supported.",
    ),
    T("pipeline in 0.33", "eagle3", want=vllm("0.33.0", pipeline_parallel=2)),
    T(
        "pipeline in 0.33, other target",
        "eagle3",
        ("spec-method-unsupported",),
        target={"architectures": ["GptOssForCausalLM"]},
        want=vllm("0.33.0", pipeline_parallel=2),
        error="GptOssForCausalLM does not support eagle3 with pipeline parallelism",
    ),
    # window
    T(
        "short window",
        "eagle3",
        ("spec-draft-context-short",),
        verdict="warn",
        target={"max_position_embeddings": 131072},
        want=PairWant(max_model_len=16384),
    ),
    T(
        "short window, default length",
        "eagle3",
        ("spec-draft-context-short",),
        verdict="warn",
        target={"max_position_embeddings": 131072},
    ),
    T(
        "short window crashes",
        "eagle3",
        ("spec-context-length-mismatch",),
        target={"max_position_embeddings": 131072},
        want=vllm("0.25.1", max_model_len=16384),
        verdict="refuse",
    ),
    T(
        "window is enough",
        "eagle3",
        target={"max_position_embeddings": 131072},
        want=PairWant(max_model_len=2048),
    ),
    T(
        "fixed rope",
        "eagle3",
        ("spec-draft-context-short",),
        verdict="warn",
        target={"max_position_embeddings": 131072},
        draft={"rope_scaling": {"type": "yarn", "factor": 1.0}},
        error="",
    ),
    T(
        "small model with short window",
        "draft_model",
        ("spec-draft-context-short",),
        verdict="warn",
        target={"max_position_embeddings": 131072},
    ),
    # quantised
    T("four bits", "eagle3", ("spec-low-acceptance",), target=AWQ, verdict="warn"),
    T("four bits of weights", "eagle3", ("spec-low-acceptance",), target=compressed(4), verdict="warn"),
    T("eight bits", "eagle3", target=FP8),
    T("eight bits of weights", "eagle3", target=compressed(8)),
    T(
        "window scaled by rope",
        "eagle3",
        target={"max_position_embeddings": 131072},
        draft={"rope_scaling": {"rope_type": "linear", "factor": 64.0}},
    ),
    T(
        "inherited quantisation",
        "eagle3",
        ("spec-draft-quant-inherited",),
        target=FP8,
        want=vllm("0.11.0"),
        verdict="warn",
    ),
    T("own quantisation", "eagle3", target=FP8, want=vllm("0.11.2")),
    # family
    T(
        "speculators for another target",
        "eagle3",
        ("spec-low-acceptance",),
        draft=SPECULATORS,
        verdict="warn",
        target={"_name_or_path": "meta-llama/Llama-3.3-70B-Instruct"},
    ),
    T(
        "speculators for this target",
        "eagle3",
        draft=SPECULATORS,
        target={"_name_or_path": "meta-llama/Meta-Llama-3.1-8B-Instruct"},
    ),
]


def judge(case: T, folder: Path) -> PairVerdict:
    words = case.tokens and [{"tokenizer.json": tokenizer(shift=s)} for s in case.tokens]
    target = make(folder / "target", config=case.target, files=words[0] if words else None)
    draft = make(
        folder / "draft",
        case.base,
        config=case.draft,
        tensors=case.tensors,
        files=words[1] if words else None,
    )
    return check_pair(
        load_model_meta(ModelRef(path=str(target))), load_model_meta(ModelRef(path=str(draft))), case.want
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rule(case: T, tmp_path: Path) -> None:
    got = judge(case, tmp_path)
    slugs = tuple(dict.fromkeys(r.slug for r in got.reasons))
    assert slugs[: len(case.slugs)] == case.slugs
    assert bool(slugs) == bool(case.slugs), got.reasons
    assert got.verdict == (case.verdict or ("refuse" if case.slugs else "ok"))
    assert case.error in " ".join(r.text for r in got.reasons)


def test_every_reason_says_what_to_do(tmp_path: Path) -> None:
    for n, case in enumerate(c for c in CASES if c.slugs):
        for reason in judge(case, tmp_path / str(n)).to_json()["reasons"]:
            assert set(reason) == {"slug", "field", "target", "draft", "text"}
            assert "Instead: " in reason["text"], reason
            assert "{" not in reason["text"].split("Instead")[0].replace("{'", ""), reason


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_one_row_a_role_for_every_version(engine: str) -> None:
    data = registry()
    for role in ROLES:
        for row in data[engine][role]:
            assert row["source"], (role, row)
        for version in [*data["engines"][engine]["examined"], "99.0"]:
            fit = [
                r
                for r in data[engine][role]
                if Version(version) in SpecifierSet(r["versions"], prereleases=True)
            ]
            assert len(fit) == 1, (role, version, len(fit))


def test_versions_that_are_none() -> None:
    assert roles_of("vllm", None).version == "0.33.0"
    assert roles_of("vllm", "0.32.0+cpu")["positions"]["head"] == "raised"
    assert roles_of("vllm", "1.0").newer
    for engine, version in (("vllm", "0.5.4"), ("vllm", "0.6.x"), ("trt", "1.0"), ("vllm", "")):
        with pytest.raises(UsageError):
            roles_of(engine, version)


@pytest.mark.parametrize(
    ("version", "name", "note"),
    [
        ("0.33.0", "EAGLE3-x", ""),
        ("0.33.0", "my-head", "takes this draft for draft_model"),
        ("0.33.0", "eagle-heads", "takes this draft for eagle,"),
        ("0.9.2", "EAGLE3-x", "takes this draft for eagle,"),
    ],
)
def test_detection_by_name_is_told(version: str, name: str, note: str, tmp_path: Path) -> None:
    target = make(tmp_path / "t")
    head = make(tmp_path / name, "eagle3", config={"architectures": ["LlamaForCausalLM"]})
    got = check_pair(
        load_model_meta(ModelRef(path=str(target))), load_model_meta(ModelRef(path=str(head))), vllm(version)
    )
    assert (got.verdict, got.method) == ("ok", "eagle3")
    assert note in " ".join(got.notes)
    assert bool(note) == bool(got.notes)


def test_unseen_shapes_are_never_ok(tmp_path: Path) -> None:
    target, head = make(tmp_path / "t"), make(tmp_path / "h", "eagle3")
    (head / "model.safetensors").rename(head / "model.gguf")
    got = check_pair(load_model_meta(ModelRef(path=str(target))), load_model_meta(ModelRef(path=str(head))))
    assert got.verdict == "warn"
    assert "not looked at" in got.reasons[0].text


def test_a_target_is_no_draft_for_itself(tmp_path: Path) -> None:
    meta = load_model_meta(ModelRef(path=str(make(tmp_path / "t"))))
    got = check_pair(meta, meta)
    assert (got.verdict, got.reasons[0].slug) == ("refuse", "spec-draft-missing")
    assert got.alternatives[-1]["method"] == "ngram"


def test_gguf_target_with_safetensors_head(tmp_path: Path) -> None:
    target, head = make(tmp_path / "t"), make(tmp_path / "h", "eagle3")
    (target / "model.safetensors").rename(target / "model.gguf")
    got = check_pair(load_model_meta(ModelRef(path=str(target))), load_model_meta(ModelRef(path=str(head))))
    assert "spec-draft-load-format" in {r.slug for r in got.reasons}


@pytest.mark.parametrize("base", ["eagle", "eagle3"])
def test_configuration_without_fields(base: str, tmp_path: Path) -> None:
    """Nothing can be compared: no crash, no invented mismatch, and the tensors still say what it is."""
    target, head = make(tmp_path / "t"), make(tmp_path / "h", base)
    for folder in (target, head):
        (folder / "config.json").write_text("{}")
    got = check_pair(
        load_model_meta(ModelRef(path=str(target))),
        load_model_meta(ModelRef(path=str(head))),
        PairWant(tensor_parallel=2, pipeline_parallel=2, method=None),
    )
    assert got.method in {"eagle", "eagle3"}
