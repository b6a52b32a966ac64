"""Weights per rank: from shapes, from tensor headers, under each quantisation."""

from dataclasses import dataclass
from math import prod
from typing import Any

import pytest

from checks.planner.from_tensors import params_from_tensors
from checks.planner.plan import plan
from checks.planner.quant import scheme_of
from checks.planner.shapes import shape_of
from checks.planner.units import GIB, MIB, allocated
from checks.planner.weights import model_params, total
from inventory.errors import InventoryError
from tests.planner.factories import eagle3, llama, scenario, speculating

WIDTHS = {"BF16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1}


@dataclass(frozen=True)
class Header:
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return WIDTHS[self.dtype] * prod(self.shape)


def checkpoint(config: dict[str, Any]) -> dict[str, Header]:
    """The tensors that a Llama checkpoint of this shape holds."""
    h, i, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    d = h // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * d
    found = {"model.embed_tokens.weight": Header("BF16", (v, h)), "model.norm.weight": Header("BF16", (h,))}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = Header("BF16", (v, h))
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}"
        for name, rows, cols in (
            ("self_attn.q_proj", h, h),
            ("self_attn.k_proj", kv, h),
            ("self_attn.v_proj", kv, h),
            ("self_attn.o_proj", h, h),
            ("mlp.gate_proj", i, h),
            ("mlp.up_proj", i, h),
            ("mlp.down_proj", h, i),
        ):
            found[f"{at}.{name}.weight"] = Header("BF16", (rows, cols))
        found[f"{at}.input_layernorm.weight"] = Header("BF16", (h,))
        found[f"{at}.post_attention_layernorm.weight"] = Header("BF16", (h,))
    return found


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("kv_heads", [1, 2, 8, 32])
@pytest.mark.parametrize("tied", [False, True])
def test_headers_and_shapes_agree(tp: int, kv_heads: int, *, tied: bool) -> None:
    config = llama(num_key_value_heads=kv_heads, tie_word_embeddings=tied, num_hidden_layers=4)
    shape = shape_of(config)
    from_shape = total(model_params(shape, tp, None), unsplit=True)
    from_headers = total(params_from_tensors(checkpoint(config), shape, tp), unsplit=True)
    assert from_headers == pytest.approx(from_shape, rel=0.001)


def test_a_float32_checkpoint_is_cast_but_its_scales_are_not() -> None:
    shape = shape_of(llama())
    names = {"model.layers.0.mlp.up_proj.weight": Header("F32", (64, 64))}
    assert params_from_tensors(names, shape, 1)[0].nbytes == 64 * 64 * 2
    names = {"model.layers.0.mlp.up_proj.weight_scale": Header("F32", (64, 1))}
    assert params_from_tensors(names, shape, 1)[0].nbytes == 64 * 4


def test_vocabulary_rows_are_padded_and_norms_whole() -> None:
    shape = shape_of(llama(vocab_size=1001))
    names = {
        "model.embed_tokens.weight": Header("BF16", (1001, 64)),
        "model.norm.weight": Header("BF16", (64,)),
    }
    sizes = {p.name: p.nbytes for p in params_from_tensors(names, shape, 2)}
    assert sizes["model.embed_tokens.weight"] == 1024 // 2 * 64 * 2
    assert sizes["model.norm.weight"] == 64 * 2


@pytest.mark.parametrize(
    ("config", "low", "high"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.25, 0.29),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.25, 0.29),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 0.49, 0.52),
        ({"quant_method": "fp8"}, 0.49, 0.51),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 0.49, 0.51),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.25, 0.30),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 0.49, 0.51),
        ({"quant_method": "mxfp4"}, 0.25, 0.28),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.25, 0.29),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 128}}},
            },
            0.25,
            0.28,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "strategy": "channel"}}},
            },
            0.49,
            0.51,
        ),
    ],
    ids=lambda c: f"{c['quant_method']}-{len(c)}" if isinstance(c, dict) else "",
)
def test_quantised_linears_shrink_by_their_bits(config: dict[str, Any], low: float, high: float) -> None:
    plain, quantised = shape_of(llama()), shape_of(llama(quantization_config=config))
    full = linear_bytes(model_params(plain, 1, None))
    small = linear_bytes(model_params(quantised, 1, scheme_of(quantised.quantization)))
    assert low <= small / full <= high


def linear_bytes(params: list[Any]) -> int:
    return sum(p.nbytes * p.count for p in params if "proj" in p.name)


def test_skipped_layers_stay_unquantised() -> None:
    config = {"quant_method": "fp8", "ignore": ["re:.*down_proj", "lm_head"]}
    scheme = scheme_of(config)
    assert scheme is not None
    assert not scheme.covers("layers.3.mlp.down_proj")
    assert scheme.covers("layers.3.mlp.gate_up_proj")


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(InventoryError, match="squeeze"):
        scheme_of({"quant_method": "squeeze"})


def test_mixture_weights_count_every_expert() -> None:
    config = llama(
        model_type="qwen3_moe",
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        head_dim=128,
    )
    experts = sum(p.nbytes * p.count for p in model_params(shape_of(config), 1, None) if "experts" in p.name)
    assert experts == 32 * 128 * 3 * 768 * 4096 * 2


def test_deepseek_v3_is_about_as_large_as_published() -> None:
    """671 B parameters at 8 bits; embeddings, head and norms at 16."""
    config = llama(
        model_type="deepseek_v3",
        architectures=["DeepseekV3ForCausalLM"],
        hidden_size=7168,
        num_hidden_layers=61,
        num_attention_heads=128,
        num_key_value_heads=128,
        intermediate_size=18432,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=3,
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        vocab_size=129280,
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
    shape = shape_of(config)
    params = [p for p in model_params(shape, 1, scheme_of(shape.quantization)) if "absorbed" not in p.name]
    assert 660e9 < total(params, unsplit=False) < 690e9


def test_a_head_shares_or_keeps_its_lm_head() -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": 3}
    real = scenario(speculative=spec, draft_config=eagle3())
    dummy = plan(real.with_(load_format="dummy")).weights
    kept = plan(real).weights
    assert dummy is not None
    assert kept is not None
    assert kept - dummy == pytest.approx(32000 * 4096 * 2, rel=0.02)


def test_a_head_of_another_width_keeps_its_embedding() -> None:
    narrow = eagle3(hidden_size=2048, num_attention_heads=16, target_hidden_size=4096)
    names = {p.name for p in plan_params(narrow)}
    assert "draft.embed_tokens" in names


def plan_params(head: dict[str, Any]) -> list[Any]:
    from checks.planner.weights import draft_params

    w = speculating().with_(draft_config=head).work()
    assert w.draft is not None
    return draft_params(w.draft, w.target, "eagle3", 1, None, own_head=w.own_head, own_embed=w.own_embed)


def test_families_that_tie_by_default_need_not_say_so() -> None:
    silent = {k: v for k, v in llama(model_type="gemma2").items() if k != "tie_word_embeddings"}
    assert shape_of(silent).tied
    assert not shape_of({k: v for k, v in llama().items() if k != "tie_word_embeddings"}).tied


def test_rounding_follows_the_allocator() -> None:
    assert allocated(24 * MIB + 1, unsplit=True) == 26 * MIB
    assert allocated(24 * MIB + 1, unsplit=False) == 24 * MIB + 512
    assert allocated(0) == 0
    assert allocated(1, unsplit=True) == 512


def test_llama_8b_is_fifteen_gib() -> None:
    made = plan(scenario())
    assert made.weights is not None
    assert made.weights / GIB == pytest.approx(15.0, abs=0.02)
