"""What is kept: benches on the operator's machine, and an audit in which a bench is no switch."""

from pathlib import Path

import pytest

from checks.bench.model import BenchResult
from provision.audit import served_for_good
from provision.bench.store import benches, benches_dir, keep

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "bench" / "sample.json"


def test_benches_are_kept_and_read_back_without_broken_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert list(benches()) == []
    found = BenchResult.from_json(SAMPLE.read_bytes())
    odd = found.model_copy(update={"host": "../x"})
    assert keep(found).parent == benches_dir() == keep(odd).parent
    (benches_dir() / "a.json").write_text("{")
    (benches_dir() / "b.json").write_text('{"schema": 9}')
    assert sorted(r.host for r in benches()) == ["../x", "gpu01"]


def test_what_a_bench_served_is_nothing_to_go_back_to() -> None:
    audit = [{"event": "serve", "release": "a"}, {"event": "bench", "release": "b"}, {"release": "c"}]
    assert [e["release"] for e in served_for_good(audit)] == ["a", "c"]
