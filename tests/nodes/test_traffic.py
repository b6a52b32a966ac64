"""What crosses the network a token, and iperf3's word on how fast it is."""

import json

import pytest

from checks.facts import Missing
from checks.modelmeta import ModelMeta
from checks.nodes.traffic import traffic, warn
from checks.planner.deployment import gpus_of_card
from checks.planner.shapes import shape_of
from checks.planner.surface import Ask, answer_for
from inventory.errors import ChangeFailed
from inventory.model import Deployment, ModelRef
from provision.nodes.measure import mbit_of

CONFIG = {
    "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "intermediate_size": 28672, "vocab_size": 128256, "torch_dtype": "bfloat16", "model_type": "llama",
    "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA_70B = shape_of(CONFIG)
UNREAD = Missing("nobody looked")
META = ModelMeta("o/m", None, CONFIG, UNREAD, UNREAD, {}, UNREAD, 0)


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


def test_llama_70b_at_tensor_parallel_4_over_two_hosts_by_hand() -> None:
    """A ring of 4 ranks: each sends 2 x 3/4 of 8192 bfloat16 numbers, 160 times a token."""
    t = traffic(LLAMA_70B, tp=4, pp=1, nodes=2)
    assert t.bytes_per_token == 160 * 8192 * 2 * 6 // 4 == 3_932_160
    assert t.messages == 160
    assert t.ms_per_token(10_000) == pytest.approx(3_932_160 * 8 / 8e9 * 1000)
    said = t.sentence(4, 2)
    assert "tensor_parallel 4 over 2 hosts sends 3,840 KiB in 160 all-reduces a token" in said
    assert "3.93 ms at 10 Gbit/s, 1.57 ms at 25 Gbit/s, 0.39 ms at 100 Gbit/s" in said


def test_the_same_cards_as_two_stages_by_hand() -> None:
    """Tp 2 inside, pp 2 between: one hidden state and its residual, whatever number of layers."""
    t = traffic(LLAMA_70B, tp=2, pp=2, nodes=2)
    assert (t.bytes_per_token, t.messages, t.tensor_parallel_crosses) == (2 * 8192 * 2, 1, False)
    assert "32 KiB a token in 1 message between stages" in t.sentence(2, 2)


@pytest.mark.parametrize(("tp", "pp", "size"), [(4, 1, 3_932_160), (2, 2, 32_768)])
def test_a_plan_over_two_hosts_says_what_crosses(tp: int, pp: int, size: int) -> None:
    d = Deployment(
        name="big", engine="vllm", target=ModelRef(repo="o/m"), tensor_parallel=tp, pipeline_parallel=pp,
        nodes=2, max_model_len=8192,
    )  # fmt: skip
    answer = answer_for(d, gpus_of_card("H200", 143_771, 2), Ask(), lambda _: META)
    assert answer.exit_code == 0
    document = answer.to_json()
    assert document["network"]["bytes_per_token"] == size
    assert document["network"]["tensor_parallel_crosses"] is (pp == 1)
    assert any(n.startswith("network: ") for n in document["notes"])
    alone = answer_for(
        d.model_copy(update={"nodes": 1}), gpus_of_card("H200", 143_771, 4), Ask(), lambda _: META
    )
    assert "network" not in alone.to_json()
