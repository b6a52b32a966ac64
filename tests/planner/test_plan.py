"""Where a start stops, with which public cause, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.planner.plan import plan
from checks.planner.scenario import Scenario, load_scenario
from checks.planner.units import GIB, MIB
from inventory.errors import InventoryError, UsageError
from tests.planner.factories import eagle3, llama, scenario, speculating

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
SPEC = {"method": "eagle3", "num_speculative_tokens": 4}
LEGACY = ("--speculative-model=x", "--num-speculative-tokens", "5")


SMALL_HEAD = llama(hidden_size=3584, num_attention_heads=28)
UNEVEN = llama(quantization_config=AWQ, intermediate_size=14400)
DRAFT_TP3 = SPEC | {"draft_tensor_parallel_size": 3}

STOPS: list[tuple[Scenario, str, str]] = [
    (scenario(total_gib=12), "load", "oom-weights-load"),
    (scenario(total_gib=18, utilization=0.85), "KV cache", "kv-cache-no-memory"),
    (scenario(total_gib=23.6, utilization=0.8, max_len=131072), "KV cache", "kv-cache-too-small"),
    (scenario(other_used=60 * GIB), "first look", "gpu-memory-occupied"),
    (scenario(kv_bytes=70 * GIB), "KV cache", "kv-cache-no-memory"),
    (speculating(total_gib=23.6, seqs=1024, batched_tokens=8192, eager=True), "warm-up", "oom-spec-draft"),
    (scenario(total_gib=23.6, utilization=0.965, seqs=1024, eager=True), "warm-up", "oom-sampler-warmup"),
    (scenario(tp=3), "configuration", "tp-heads-indivisible"),
    (scenario(config=llama(num_key_value_heads=6), tp=4), "configuration", "tp-kv-heads-indivisible"),
    (scenario(gpus=2, tp=4), "configuration", "tp-world-size-exceeds-gpus"),
    (scenario(config=UNEVEN, tp=2), "configuration", "tp-quant-group-indivisible"),
    (scenario(speculative=DRAFT_TP3, draft_config=eagle3()), "configuration", "tp-draft-size-invalid"),
    (scenario(speculative=SPEC), "configuration", "spec-draft-missing"),
    (scenario(speculative=SPEC | {"method": "magic"}), "configuration", "spec-method-unsupported"),
    (speculating(method="eagle").with_(draft_config=SMALL_HEAD), "profile", "spec-hidden-size-mismatch"),
    (
        speculating(method="draft_model").with_(draft_config=llama(vocab_size=32000)),
        "configuration",
        "spec-vocab-mismatch",
    ),
    (scenario(extra_args=LEGACY), "configuration", "spec-legacy-flags"),
]


@pytest.mark.parametrize(("s", "stage", "reason"), STOPS, ids=[reason for _s, _stage, reason in STOPS])
def test_a_start_stops_with_its_public_cause(s: Scenario, stage: str, reason: str) -> None:
    made = plan(s)
    assert made.stop is not None
    assert (made.stop.stage, made.reason) == (stage, reason)
    assert made.verdict == "does-not-fit"
    assert made.device_peak is None
    assert made.stop.text


def filled(s: Scenario, leave: int) -> Scenario:
    """``s`` with a KV cache that leaves about this much of the card after start."""
    made = plan(s.with_(kv_bytes=4 * GIB))
    assert made.free is not None
    return s.with_(kv_bytes=4 * GIB + made.free - leave)


def test_graphs_that_do_not_fit_stop_the_capture() -> None:
    s = scenario(seqs=64)
    graphs = next(t for t in plan(s).terms if t.name == "CUDA graphs").nbytes
    warm = next(t for t in plan(s).terms if t.name.startswith("sampler")).nbytes
    made = plan(filled(s, -warm - graphs // 2))
    assert (made.stop and made.stop.stage, made.reason) == ("graph capture", "oom-cuda-graph-capture")


def test_a_roomy_start_fits_and_says_what_it_takes() -> None:
    made = plan(scenario())
    assert (made.starts, made.verdict, made.reason) == (True, "fits", None)
    assert made.device_peak is not None
    assert made.device_peak == sum(t.nbytes for t in made.terms)
    assert made.band > 0
    assert all(t.source and t.band >= 0 for t in made.terms)


def test_little_left_is_tight() -> None:
    assert plan(filled(scenario(eager=True), 200 * MIB)).verdict == "tight"
    assert plan(filled(scenario(eager=True), 4 * GIB)).verdict == "fits"


def test_the_length_can_follow_the_memory() -> None:
    made = plan(scenario(total_gib=23.6, utilization=0.9, max_len=None, auto_len=True, seqs=16))
    assert made.starts
    assert made.max_len is not None
    assert 8192 < made.max_len < 131072
    assert made.max_len == made.longest


def test_the_default_length_is_the_models_own_stretched_by_yarn() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = llama(max_position_embeddings=32768, rope_scaling=yarn)
    assert scenario(config=config, max_len=None).work().max_len == 131072


@pytest.mark.parametrize(
    ("device", "gib", "seqs", "tokens"),
    [("H100", 79.1, 1024, 8192), ("A100-SXM4-80GB", 79.1, 256, 2048), ("RTX 4090", 23.6, 256, 2048)],
)
def test_scheduling_defaults_follow_the_card(device: str, gib: float, seqs: int, tokens: int) -> None:
    w = scenario(total_gib=gib, device=device).work()
    assert (w.seqs, w.batched_tokens) == (seqs, tokens)


def test_probabilistic_drafting_holds_logits_for_every_slot() -> None:
    greedy = speculating(seqs=256, eager=True, utilization=0.6)
    chance = greedy.with_(speculative=dict(greedy.speculative) | {"draft_sample_method": "probabilistic"})
    more = peak(plan(chance)) - peak(plan(greedy))
    assert more == pytest.approx(256 * 4 * 128256 * 4, rel=0.01)


def peak(made: Any) -> int:
    assert made.device_peak is not None, made.stop
    return int(made.device_peak)


def test_older_engines_say_that_nobody_measured_them() -> None:
    assert any("measured" in note for note in plan(scenario(version="0.17.1")).notes)
    assert plan(scenario()).notes == ()


@pytest.mark.parametrize("version", ["abc", "120.0"])
def test_a_version_nobody_published_is_an_error(version: str) -> None:
    with pytest.raises(UsageError):
        plan(scenario(version=version))


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_configuration_without_a_field_names_it(missing: str) -> None:
    config = {k: v for k, v in llama().items() if k != missing}
    with pytest.raises(InventoryError, match=missing):
        plan(scenario(config=config))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_config", None),
        ("model_config", {}),
        ("model_config", []),
        ("device_total_gib", None),
        ("device_total_gib", "80"),
        ("device_total_gib", -1),
        ("gpu_memory_utilization", 1.5),
        ("tensor_parallel_size", 0),
        ("max_num_seqs", "many"),
        ("max_model_len", -5),
        ("speculative_config", "eagle"),
        ("engine", "llama.cpp"),
    ],
)
def test_a_malformed_scenario_is_an_error(field: str, value: object) -> None:
    row = {"model_config": llama(), "device_total_gib": 80.0, field: value}
    with pytest.raises((InventoryError, UsageError)):
        plan(Scenario.from_mapping(row))


def test_absent_and_null_fields_are_defaults() -> None:
    row = {"model_config": llama(), "device_total_gib": 79.1, "speculative_config": None, "version": "0.25.1"}
    made = plan(Scenario.from_mapping(row))
    assert made.starts
    assert made.scenario.used_utilization() == 0.92


@pytest.mark.parametrize("text", ["", "[", "[]", "3"])
def test_a_file_that_is_no_scenario_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(InventoryError):
        load_scenario(path)
    with pytest.raises(InventoryError):
        load_scenario(tmp_path / "absent.json")


def test_the_document_holds_the_scenario_interface() -> None:
    document = json.loads(json.dumps(plan(scenario()).to_json()))
    keys = [
        "schema",
        "model_loading_gib",
        "available_kv_gib",
        "kv_tokens",
        "device_peak_gib",
        "starts",
        "reason",
    ]
    assert list(document)[: len(keys)] == keys
    assert document["starts"] is True
