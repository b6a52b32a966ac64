"""With the real engine's CPU build: four ways to draft, one after the other, and back to what served."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from checks.bench.model import BenchResult
from inventory.hosts import load_inventory
from inventory.model import Deployment, Draft, ModelRef
from provision import ssh
from provision.converge import Options, provision_host
from provision.sources import Sources
from tests.lab.assets.models import OWNER, build_models
from tests.lab.assets.wheelhouse import build_wheelhouse
from tests.lab.bench.conftest import Bench
from tests.lab.conftest import MakeLab
from tests.lab.engine.build import build_standin_wheelhouse
from tests.lab.hub import Hub
from tests.lab.provision.stage import Stage, eventually

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.long]

SIZES = ("--prompt-tokens", "200", "--output-tokens", "32", "--yes")
K = 3


def deployment() -> Deployment:
    draft = Draft(
        method="eagle3", model=ModelRef(repo=f"{OWNER}/tiny-llama-eagle3"), num_speculative_tokens=K
    )
    return Deployment(
        name="chat",
        engine="vllm",
        engine_version="0.32.0",
        device="cpu",
        target=ModelRef(repo=f"{OWNER}/tiny-llama"),
        draft=draft,
        served_model_name="chat",
        dtype="float32",
        max_model_len=512,
        max_num_seqs=4,
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        wheels_from="push",
    )


@pytest.fixture(scope="module")
def real(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """gpu01 with the real engine serving the EAGLE-3 head."""
    wheels, models = build_wheelhouse(), build_models()
    lab = make_lab(["gpu01"], profile="rtx4090x1")
    try:
        with Hub(models.root, bind=lab.network.gateway, cdn=lab.network.alias) as hub:
            stage = Stage(lab, hub, build_standin_wheelhouse(), tmp_path_factory.mktemp("real"))
            stage.inventory()
            sources = Sources(endpoint=hub.url, wheelhouse=wheels.dir)
            host = load_inventory(stage.folder / "hosts.yml").select("gpu01")[0]
            report = provision_host(
                host,
                deployment(),
                lambda h: ssh.connect(h, ssh.SshOptions()),
                Options(sources=sources),
                stage.said.append,
            )
            assert report.exit_code == 0, report.error
            yield stage
    finally:
        lab.down()


def counters(stage: Stage) -> dict[str, float]:
    """The engine's own page, read apart from the product's code."""
    page = stage.sh("curl -s http://127.0.0.1:8000/metrics")
    rows = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("vllm:spec_decode_num_")]
    found: dict[str, float] = {}
    for name, value in rows:
        short = name.partition("{")[0].removeprefix("vllm:spec_decode_num_")
        found[short] = found.get(short, 0.0) + float(value)
    return found


def test_acceptance_is_what_the_engine_counted(real: Stage) -> None:
    before = counters(real)
    told = Bench(real).run(deployment(), "--concurrency", "2", "--repeats", "1", *SIZES[:-1])
    after = counters(real)
    seen = BenchResult.model_validate(told["results"][0]).strategies[0].acceptance
    assert seen
    for name, ours in (
        ("drafts_total", seen.drafts),
        ("draft_tokens_total", seen.draft_tokens),
        ("accepted_tokens_total", seen.accepted_tokens),
    ):
        assert ours == after[name] - before[name], name
    assert seen.drafts
    name = "accepted_tokens_per_pos_total"
    assert sum(seen.per_position) * seen.drafts == pytest.approx(after[name] - before[name])
    assert seen.draft_tokens == K * seen.drafts


def test_four_strategies_and_back(real: Stage) -> None:
    served = real.current()
    words: tuple[str, ...] = ("--compare", "none,ngram,draft_model,eagle3")
    words += ("--drafts", f"draft_model={OWNER}/tiny-llama-draft")
    few = ("--concurrency", "4", "--repeats", "2", "--no-tune")
    told = Bench(real).run(deployment(), *words, *few, *SIZES)
    result = BenchResult.model_validate(told["results"][0])
    assert [s.strategy for s in result.strategies] == ["none", "ngram", "draft_model", "eagle3"]
    for run in result.strategies:
        assert not run.error, run.error
        assert run.kv_tokens
        assert run.missing["gpu_memory_mib"] == "the engine runs on the CPU"
        cell = run.cell("code", 4)
        assert cell
        assert cell.output_tokens == 32
        assert cell.tokens_per_s_total.median > 0
        if run.strategy == "none":
            assert run.acceptance is None
            continue
        assert run.lossless
        assert run.lossless.same, run.lossless
        assert run.acceptance
        assert {c.workload for c in run.cells} >= {"code", "python", "sql", "rag", "chat"}
    eagle = result.run("eagle3")
    assert eagle
    assert eagle.acceptance
    assert (eagle.acceptance.rate or 0) > 0.02
    assert result.verdict
    assert result.draft_lengths
    assert {(s.strategy, s.concurrency) for s in result.speedups} >= {("eagle3 k=3", 4), ("ngram k=3", 4)}
    assert real.current() == served
    assert real.answers()


def test_a_killed_operator(real: Stage) -> None:
    served = real.current()
    operator = Bench(real).start(deployment(), "--compare", "none", "--concurrency", "1", *SIZES)
    operator.says("none: code at 1", within=150)
    operator.kill()
    operator.finish()
    eventually(lambda: real.current() == served and real.answers(), within=120, what="what served before")


def test_against_its_own_baseline(real: Stage) -> None:
    """A busy lab may be too noisy to tell; it is never called slower for nothing, and acceptance is exact."""
    got, out, said = Bench(real).start(deployment(), "--against", "baseline").finish(timeout=300)
    assert got in {0, 3, 4}, said
    found: dict[str, Any] = json.loads(out)["against_baseline"][0]
    rows = {r["name"]: r for r in found["rows"]}
    assert rows["tokens a step"]["answer"] == "pass"
    assert rows["tokens a step"]["change"] == pytest.approx(0, abs=1e-6)
