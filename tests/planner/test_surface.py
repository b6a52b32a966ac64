"""The command's own part: cards and facts in, documents and exit codes out."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from checks.facts import HostFacts, Missing
from checks.modelmeta import ModelMeta
from checks.planner.deployment import gpus_of, scenario_of
from checks.planner.plan import plan
from checks.planner.surface import Ask, answer_for, deployment, gpus_from, load_facts, scenario, truth
from checks.planner.units import GIB, MIB
from inventory.errors import CheckRefused, EyasError, InventoryError, UsageError
from inventory.model import Deployment, ModelRef
from tests.planner.factories import eagle3, llama

MEASUREMENTS = Path(__file__).parent.parent / "data" / "h200" / "measurements.json"
NOTHING = Ask()
GPU: dict[str, Any] = {"name": "NVIDIA L40S", "memory_total": 46068 * MIB, "memory_used": 300 * MIB}


def facts(*gpus: dict[str, Any], **more: Any) -> HostFacts:
    return HostFacts(host="gpu01", taken_at=0.0, tree={"gpus": list(gpus), **more})


def meta(ref: ModelRef) -> ModelMeta:
    config = eagle3() if "head" in ref.label else llama()
    nothing = Missing("not read")
    return ModelMeta(
        label=ref.label,
        commit=None,
        config=config,
        generation_config=nothing,
        tensors=nothing,
        files={},
        tokenizer=nothing,
        total_bytes=0,
    )


def wanted(**changes: Any) -> Deployment:
    fields: dict[str, Any] = {
        "name": "coder",
        "engine": "vllm",
        "engine_version": "0.25.1",
        "target": {"repo": "org/model"},
        "draft": {"method": "eagle3", "model": {"repo": "org/head"}, "num_speculative_tokens": 3},
        "max_model_len": 8192,
        "max_num_seqs": 64,
    }
    return Deployment.model_validate(fields | changes)


def test_a_deployment_becomes_the_scenario_it_asks_for() -> None:
    d = wanted(tensor_parallel=2, kv_cache_dtype="fp8", enforce_eager=True, max_num_batched_tokens=4096)
    s = scenario_of(d, meta(d.target), meta(ModelRef(repo="org/head")), gpus_of(facts(GPU, GPU)))
    w = s.work()
    assert (w.tp, w.seqs, w.batched_tokens, w.max_len, w.k, w.method) == (2, 64, 4096, 8192, 3, "eagle3")
    assert (w.kv_dtype, w.eager, s.gpus) == ("fp8", True, 2)


def test_the_smallest_card_and_the_fullest_count() -> None:
    small = GPU | {"memory_total": 24564 * MIB, "memory_used": 5000 * MIB}
    found = gpus_of(facts(GPU, small))
    assert found.total < 24564 * MIB
    assert (found.count, found.used) == (2, 5000 * MIB)


def test_what_serves_now_does_not_count_against_its_successor() -> None:
    units = {"units": {"eyas-coder.service": {"active": "active"}}}
    found = gpus_of(facts(GPU | {"memory_used": 40 * GIB}, eyas=units))
    assert found.used == 0
    assert "eyas-coder" in found.notes[0]


@pytest.mark.parametrize(
    "seen",
    [
        HostFacts("gpu01", 0.0, {"gpus": {"missing": "no NVIDIA library"}}),
        HostFacts("gpu01", 0.0, {}),
        facts(),
        facts(GPU | {"memory_total": {"missing": "GPU is lost"}}),
    ],
)
def test_cards_nobody_could_look_at_are_never_guessed(seen: HostFacts) -> None:
    with pytest.raises(CheckRefused):
        gpus_of(seen)


def test_a_named_card_is_found_and_a_wrong_name_refused() -> None:
    found = gpus_from(gpu="rtx 4090", count="2", facts=None)
    assert (found.name, found.count) == ("RTX 4090", 2)
    assert 23 * GIB < found.total < 24 * GIB
    for gpu in ("", "GeForce 256"):
        with pytest.raises(UsageError):
            gpus_from(gpu=gpu, count="1", facts=None)
    with pytest.raises(UsageError):
        gpus_from(gpu="RTX 4090", count="0", facts=None)


def test_a_plan_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code = deployment(wanted(), gpus_of(facts(GPU)), NOTHING, meta, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (code, document["starts"], document["verdict"]) == (0, True, "fits")
    assert document["terms"]
    assert document["advice"] == []


def test_what_does_not_fit_ends_in_4_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    cards = gpus_from(gpu="RTX 4090", count="1", facts=None)
    code = deployment(wanted(max_model_len=131072), cards, NOTHING, meta, as_json=False)
    out = capsys.readouterr().out
    assert code == 4
    assert "does-not-fit" in out
    assert "change max_model_len" in out
    assert "costs:" in out
    assert "\x1b" not in out


def test_the_inverse_questions_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    cards = gpus_from(gpu="L40S", count="1", facts=None)
    ask = Ask(requests=1000, context=32768, cards=True)
    code = deployment(wanted(), cards, ask, meta, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert code == 4
    assert document["capacity"]["holds"] is False
    assert document["capacity"]["most_requests_at_this_context"] > 0
    assert {"card", "gpus"} <= set(document["cards"][0]) if document["cards"] else True
    ask = Ask(auto_len=True)
    assert deployment(wanted(max_model_len=None), cards, ask, meta, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["max_model_len"] == document["longest_model_len"] > 8192


def test_a_start_calibrates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "start.log"
    log.write_text("Model loading took 15.50 GiB and 2 seconds\nAvailable KV cache memory: 20.00 GiB\n")
    ask = Ask.parse(log=str(log), used_mib="40960")
    assert deployment(wanted(), gpus_of(facts(GPU)), ask, meta, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model_loading_gib"] == 15.5
    assert document["device_peak_gib"] == 40.0
    assert all(t["measured"] for t in document["terms"])


@pytest.mark.parametrize(
    "words",
    [
        {"concurrency": "3"},
        {"context": "3"},
        {"concurrency": "-1", "context": "5"},
        {"concurrency": "0", "context": "5"},
        {"max_model_len": "long"},
        {"max_model_len": "-4"},
        {"log": "/nonexistent/start.log"},
        {"used_mib": "much"},
    ],
)
def test_half_a_question_is_an_error(words: dict[str, Any]) -> None:
    with pytest.raises(EyasError):
        Ask.parse(**words)


def test_a_file_of_facts_that_is_none_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    for text in (b"", b"{}", b"\xff\xfe"):
        path.write_bytes(text)
        with pytest.raises(InventoryError):
            load_facts(str(path))
    with pytest.raises(InventoryError):
        load_facts(str(tmp_path / "absent"))


def test_a_scenario_file_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"model_config": llama(), "device_total_gib": 12.0, "device": "RTX 3060"}))
    assert scenario(str(path), NOTHING, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["starts"], document["reason"]) == (False, "oom-weights-load")
    assert scenario(str(path), NOTHING, as_json=False) == 4


def test_the_truth_table_is_within_its_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert truth(MEASUREMENTS, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["within"] is True
    assert len(document["rows"]) >= 30
    assert truth(MEASUREMENTS, as_json=False) == 0
    assert "q7-eagle3" in capsys.readouterr().out


def test_sglang_is_planned_with_a_wide_band(capsys: pytest.CaptureFixture[str]) -> None:
    d = wanted(engine="sglang", engine_version="auto")
    cards = gpus_from(gpu="H100 SXM", count="1", facts=None)
    assert deployment(d, cards, NOTHING, meta, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["band_gib"] > 2
    assert "not measured" in document["notes"][0]
    s = scenario_of(d, meta(d.target), meta(ModelRef(repo="org/head")), cards)
    assert plan(s.with_(utilization=0.1)).reason == "oom-static-fraction-window"
    assert plan(s.with_(max_len=10**7)).reason == "kv-cache-too-small"


def test_a_terminal_gets_a_bar_for_each_card() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    d = wanted(tensor_parallel=2)
    answer_for(d, gpus_of(facts(GPU, GPU)), NOTHING, meta).show(console)
    shown = out.getvalue()
    assert "GPU 0" in shown
    assert "GPU 1" in shown
    assert "target weights" in shown
    assert max(map(len, shown.splitlines())) <= 90
