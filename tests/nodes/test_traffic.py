"""What crosses the network a token, and iperf3's word on how fast it is."""

import json

import pytest

from checks.nodes.traffic import traffic, warn
from checks.planner.shapes import shape_of
from inventory.errors import ChangeFailed
from provision.nodes.measure import mbit_of

LLAMA_70B = shape_of(
    {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 28672, "vocab_size": 128256, "torch_dtype": "bfloat16", "model_type": "llama",
    }
)  # fmt: skip


def test_tensor_parallel_over_two_hosts_by_hand() -> None:
    """80 layers x 2 all-reduces x 8192 x 2 bytes x 2 (n-1)/n with n = 2."""
    t = traffic(LLAMA_70B, tp=2, pp=1, nodes=2)
    assert (t.bytes_per_token, t.messages) == (80 * 2 * 16384, 160)
    assert t.ms_per_token(25_000) == pytest.approx(80 * 2 * 16384 * 8 / 20e9 * 1000)
    (finding,) = warn(t, tp=2, pp=1, nodes=2, mbit=25_000, source="x", host="a")
    said = "tensor_parallel 2 over 2 hosts sends 2,560 KiB in 160 all-reduces a token: 1.05 ms"
    assert finding.cause.startswith(said)
    assert (finding.code, finding.fix[0].value) == ("TP121", "1 and 2")
    (blind,) = warn(t, tp=2, pp=1, nodes=2, mbit=None, source="x", host="a")
    assert blind.cause.endswith("the link's speed is not known")


def test_stages_on_hosts_of_their_own_send_one_state() -> None:
    t = traffic(LLAMA_70B, tp=8, pp=2, nodes=2)
    assert (t.bytes_per_token, t.messages, t.tensor_parallel_crosses) == (2 * 16384, 1, False)
    assert list(warn(t, tp=8, pp=2, nodes=2, mbit=1.0, source="x", host="a")) == []


@pytest.mark.parametrize(
    ("tp", "pp", "nodes", "crosses"), [(16, 1, 2, True), (3, 2, 3, True), (4, 4, 2, False)]
)
def test_which_layouts_cross(tp: int, pp: int, nodes: int, crosses: bool) -> None:
    assert traffic(LLAMA_70B, tp=tp, pp=pp, nodes=nodes).tensor_parallel_crosses is crosses


def test_iperf3s_word() -> None:
    told = {"end": {"sum_received": {"bits_per_second": 9.4e9}}}
    assert mbit_of(json.dumps(told), "b") == 9400
    for wrong in ("", "{", '{"error": "unable to connect"}', "[]"):
        with pytest.raises(ChangeFailed, match="iperf3 measured nothing"):
            mbit_of(wrong, "b")
