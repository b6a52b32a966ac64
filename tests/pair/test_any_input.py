"""Whatever a configuration holds, the gate answers: no crash, a verdict, and reasons that say what to do."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.facts import Missing
from checks.modelmeta import ModelMeta, TensorInfo
from checks.pairgate import PairWant, check_pair, want_of
from checks.pairgate.catalogue import registry
from inventory.model import Deployment, Draft, ModelRef
from tests.pair.making import BASES

KEYS = [
    "architectures", "model_type", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size",    "max_position_embeddings", "draft_vocab_size", "target_hidden_size", "eagle_config",
    "rope_scaling", "text_config",    "quantization_config", "speculators_model_type", "speculators_config",
    "transformer_layer_config", "model",    "num_aux_hidden_states", "_name_or_path", "kv_lora_rank", "bias",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 4096), st.floats(allow_nan=False), st.text(max_size=5),
    st.sampled_from(["LlamaForCausalLM", "eagle3", "llama", "yarn", "meta-llama/Llama-3.1-8B-Instruct"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "factor", "verifier", "name_or_path", "bits", "hidden_size", "proposal_methods"]
            ),
            inner,
        ),
    ),
    max_leaves=6,
)
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5)
SHAPES = st.lists(st.integers(0, 1024), max_size=3).map(tuple)
WANTS = st.builds(
    PairWant,
    engine=st.just("vllm"),
    version=st.sampled_from(registry()["engines"]["vllm"]["examined"]),
    tensor_parallel=st.integers(1, 8),
    draft_tensor_parallel=st.none() | st.integers(1, 8),
    pipeline_parallel=st.integers(1, 2),
    max_model_len=st.none() | st.integers(1, 10**6),
)


def meta(base: str, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> ModelMeta:
    plain, tensors = BASES[base]
    found = {n: TensorInfo("F32", s, 0, "model.safetensors") for n, s in (tensors | shapes).items()}
    return ModelMeta(base, None, plain | config, Missing("-"), found, {}, Missing("-"), 0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    target=CHANGES,
    draft=CHANGES,
    base=st.sampled_from(["eagle", "eagle3", "draft_model"]),
    shapes=st.dictionaries(st.sampled_from(sorted(BASES["eagle3"][1])), SHAPES, max_size=3),
    want=WANTS,
)
def test_any_configuration(
    target: dict[str, Any],
    draft: dict[str, Any],
    base: str,
    shapes: dict[str, tuple[int, ...]],
    want: PairWant,
) -> None:
    got = check_pair(meta("target", target, {}), meta(base, draft, shapes), want)
    assert (got.verdict == "ok") is (not got.reasons)
    assert (got.verdict == "refuse") is any(r.severity == "refuse" for r in got.reasons)
    assert all("Instead: " in r.text for r in got.reasons)


@settings(max_examples=20, deadline=None)
@given(tp=st.sampled_from([1, 2, 4]), length=st.integers(1, 2048))
def test_a_fitting_pair_fits_however_it_is_split(tp: int, length: int) -> None:
    want = PairWant(tensor_parallel=tp, max_model_len=length)
    assert check_pair(meta("target", {}, {}), meta("eagle3", {}, {}), want).verdict == "ok"


def test_what_a_deployment_asks() -> None:
    deployment = Deployment(
        name="d", engine="vllm", engine_version="0.32.0", target=ModelRef(repo="a/b"), tensor_parallel=2,
        draft=Draft(method="eagle3", model=ModelRef(repo="a/c"), num_speculative_tokens=3), max_model_len=512,
    )  # fmt: skip
    assert want_of(deployment) == PairWant("vllm", "0.32.0", "eagle3", 2, None, 1, 512)
