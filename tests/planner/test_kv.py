"""KV cache arithmetic: bytes a token, groups, windows, what fits."""

import pytest

from checks.planner.kv import KvLayout, layout_of
from checks.planner.shapes import shape_of
from checks.planner.units import GIB
from tests.planner.factories import eagle3, llama


def kv(config: dict[str, object], head: dict[str, object] | None = None, **changes: object) -> KvLayout:
    fields: dict[str, object] = {"tp": 1, "kv_dtype": "auto", "block_size": 16, "batched_tokens": 8192}
    draft = shape_of(head) if head else None
    return layout_of(shape_of(config), draft, **(fields | changes))  # type: ignore[arg-type]


def test_seventy_billion_on_four_cards() -> None:
    """80 layers of 2 KV heads a rank; one head layer of the same shape adds 1.25 %."""
    config = llama(hidden_size=8192, num_attention_heads=64, num_hidden_layers=80)
    assert kv(config, tp=4).bytes_per_token == 81920
    head = eagle3(hidden_size=8192, num_attention_heads=64)
    assert kv(config, head, tp=4).bytes_per_token == 82944


@pytest.mark.parametrize(("tp", "expected"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_kv_heads_are_split_then_repeated(tp: int, expected: int) -> None:
    assert kv(llama(), tp=tp).bytes_per_token == 32 * 2 * expected * 128 * 2


def test_eight_bit_keys_and_values_halve_a_token() -> None:
    assert kv(llama(), kv_dtype="fp8").bytes_per_token * 2 == kv(llama()).bytes_per_token


def test_latent_attention_stores_one_head() -> None:
    config = llama(kv_lora_rank=512, qk_rope_head_dim=64)
    assert kv(config).bytes_per_token == 32 * 576 * 2
    assert kv(config, tp=8).bytes_per_token == 32 * 576 * 2


def test_windows_stop_growing() -> None:
    """One full layer in six, like Gemma 3: 48 layers are 8 full and five groups of 8 windows."""
    types = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(48)]
    config = llama(num_hidden_layers=48, layer_types=types, sliding_window=1024)
    hybrid, plain = kv(config, batched_tokens=2048), kv(llama(num_hidden_layers=48))
    assert len(hybrid.groups) == 6
    assert hybrid.needed(131072) < plain.needed(131072) / 4
    assert hybrid.bytes_per_block * 6 == plain.bytes_per_block


def test_nearly_equal_kinds_are_padded_to_the_larger() -> None:
    types = ["full_attention"] * 13 + ["sliding_attention"] * 12
    config = llama(num_hidden_layers=25, layer_types=types, sliding_window=128)
    assert [g.layers for g in kv(config).groups] == [13, 13]


def test_state_layers_hold_no_tokens() -> None:
    types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8
    assert kv(llama(layer_types=types)).bytes_per_token == 8 * 2 * 8 * 128 * 2


def test_capacity_is_concurrency_times_length() -> None:
    layout = kv(llama())
    available = 10 * GIB
    assert layout.blocks(available) == available // layout.bytes_per_block
    assert layout.tokens(available, 8192) == int(layout.blocks(available) / 512 * 8192)
    assert layout.blocks(-1) == 0
    assert layout.longest(0, 8192) == 0
