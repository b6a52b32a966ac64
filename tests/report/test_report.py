"""From documents to the report's tree and page: what is known, what is not, what must not get out."""

import json
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.report import Collected, assemble, collect, render
from checks.report.charts import by_concurrency, nice_top, over_time, slices
from checks.report.memory import memory_of
from checks.report.saved import take
from inventory.errors import InventoryError, UsageError
from tests.report import making


def tree_of(*documents: Any) -> dict[str, Any]:
    found = Collected()
    for document in documents:
        take(found, document)
    return assemble(found, made_at="2026-12-01T00:00:00Z", version="0")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = making.fill(tmp_path_factory.mktemp("saved"))
    return assemble(collect(folder), made_at="2026-12-01T00:00:00Z", version="0")


# ---- documents


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("status", making.status()),
        ("status", {"schema": 1, "hosts": [], "unreachable": []}),
        ("doctor", making.doctor()),
        ("facts", making.facts()),
        ("one host's facts", making.facts()["hosts"][0]),
        ("plan", making.plans()),
        ("one plan", making.plans()["hosts"][0]),
        ("drift", making.drift()),
        ("bench", making.bench()),
        ("bench", {"schema": 1, "task": "bench", "results": [making.bench()], "failed": []}),
        ("review", making.review()),
    ],
)
def test_each_document_is_told_by_its_shape(kind: str, document: dict[str, Any]) -> None:
    assert take(Collected(), document) == kind


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "not a JSON object"),
        ({"hosts": []}, "schema"),
        ({"schema": 2, "hosts": []}, "schema '2'"),
        ({"schema": 1, "error": "no such host"}, "the document of a failed run: no such host"),
        ({"schema": 1, "kind": "bench", "host": 3}, "a bench whose host"),
        ({"schema": 1, "hosts": [3, None, {}]}, "no document of"),
        ({"schema": 1}, "no document of"),
    ],
)
def test_what_is_no_document_is_named_with_the_reason(document: Any, why: str) -> None:
    with pytest.raises(InventoryError, match=why):
        take(Collected(), document)


def test_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    making.save(tmp_path / "a.json", making.status())
    (tmp_path / "b.json").write_bytes(b'{"schema": 1, "ho')
    (tmp_path / "c.json").write_bytes(b"[" * 100_000)
    (tmp_path / "d.json").write_bytes(bytes(range(256)))
    found = collect(tmp_path)
    assert [s["name"] for s in found.sources] == ["a.json"]
    assert [u["name"] for u in found.unread] == ["b.json", "c.json", "d.json"]
    page = render(assemble(found, made_at="2026-12-01T00:00:00Z", version="0"))
    assert "c.json was not read" in page


@pytest.mark.parametrize("content", [None, "", '{"schema": 7}'])
def test_a_folder_without_a_document_is_usage(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    with pytest.raises(UsageError):
        collect(tmp_path)
    with pytest.raises(UsageError):
        collect(tmp_path / "absent")


ODD: tuple[Any, ...] = (None, 3, "x", [], {}, [None], {"missing": "r"}, True, float("inf"))


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(node, dict):
        for key in node:
            yield from places(node[key], (*path, key))
    elif isinstance(node, list) and node:
        yield from places(node[0], (*path, 0))


@pytest.mark.parametrize("name", ["status", "doctor", "plans", "drift", "review", "facts"])
def test_anything_in_any_place_of_a_saved_file_is_borne(name: str) -> None:
    """Either the file is named as unread, or it is shown; never a traceback, and always a JSON document."""
    whole = getattr(making, name)()
    for n, path in enumerate(places(whole)):
        document = json.loads(json.dumps(whole))
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = ODD[n % len(ODD)]
        found = Collected()
        take(found, making.facts())
        with suppress(InventoryError):
            take(found, document)
        tree = assemble(found, made_at="2026-12-01T00:00:00Z", version="0")
        json.dumps({**tree, "sources": []}, allow_nan=False)
        if n % 4 == 0:
            render(tree)


# ---- known and not known


def test_a_number_nobody_read_is_null_with_its_reason(tree: dict[str, Any]) -> None:
    down = next(r for r in tree["fleet"] if r["host"] == "gpu03")
    assert down["kv_usage"] is None
    assert down["why"]["kv_usage"] == "the engine is not serving: failed"
    cells = [c for b in tree["benches"] for r in b["rows"] for c in r.items() if c[1] is None]
    assert cells
    assert all(r["why"][k] for b in tree["benches"] for r in b["rows"] for k, v in r.items() if v is None)


def test_what_needs_somebody_comes_first(tree: dict[str, Any]) -> None:
    assert [r["host"] for r in tree["fleet"]] == ["gpu03", "gpu02", "gpu05", "gpu01"]
    page = render(tree)
    assert page.index("gpu04") < page.index(">gpu03<")
    assert "2 of 5 hosts serving; 1 error, 1 warning" in page


def test_a_section_nobody_looked_at_says_so_and_how() -> None:
    tree = tree_of(making.bench())
    assert tree["summary"]["errors"] is None
    assert tree["summary"]["hosts"] is None
    assert set(tree["absent"]) == {"fleet", "findings", "drift", "memory"}
    page = render(tree)
    assert "Not known: not looked at; invoke doctor" in page
    assert "Nothing was found" not in page


def test_clean_and_blind_are_not_the_same() -> None:
    clean = {
        "schema": 1,
        "findings": [],
        "outcomes": [{"check": "log", "status": "ok", "why": ""}],
        "verdict": "",
    }
    blind = clean | {"outcomes": [{"check": "log", "status": "unknown", "why": "no journal"}]}
    assert "Nothing was found." in render(tree_of(clean))
    page = render(tree_of(blind))
    assert "Nothing was found." not in page
    assert "no journal" in page


def test_one_cause_on_many_hosts_is_one_finding() -> None:
    several = [making.finding(host=f"gpu{n:02}") for n in range(30)]
    found = tree_of(making.doctor() | {"findings": several})["findings"]
    assert len(found) == 1
    assert len(found[0]["hosts"]) == 30


def test_the_page_is_made_of_an_empty_fleet_too() -> None:
    page = render(tree_of({"schema": 1, "hosts": [], "unreachable": []}))
    assert "0 of 0 hosts serving" in page


def test_a_host_seen_twice_counts_once() -> None:
    tree = tree_of(making.status(), making.status())
    assert len(tree["fleet"]) == 4
    assert len(tree["unreachable"]) == 1


# ---- escaping, secrets


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


@settings(max_examples=15, deadline=None)
@given(st.text(st.sampled_from("<>\"'&`/= \n\0\u2028abscript:onload#{}%"), max_size=40))
def test_no_text_becomes_markup(text: str) -> None:
    rows = making.status() | {
        "hosts": [making.row(text, deployment=text, state=text, release=text, drift=[text])]
    }
    bench = making.bench() | {"host": text, "deployment": text, "target": text, "notes": [text]}
    page = render(tree_of(rows, making.doctor(making.finding(title=text, cause=text, host=text)), bench))
    tags = _Tags()
    tags.feed(page)
    assert not tags.names & {"script", "img", "iframe", "object", "embed", "link", "form", "input"}
    assert not {a for a in tags.attributes if a.startswith("on")} | tags.attributes & {"style", "src"}


def test_a_secret_reaches_neither_page_nor_tree() -> None:
    tree = tree_of(making.hostile())
    assert making.SECRET not in json.dumps(tree)
    assert making.SECRET not in render(tree)
    assert "[removed]" in render(tree)


def test_a_long_line_is_cut_and_says_so() -> None:
    evidence = [{"source": "log", "line": 1, "text": "x" * 50_000}]
    found = tree_of(making.doctor(making.finding(title="t", evidence=evidence)))["findings"]
    assert any(e["text"].endswith("48800 more characters)") for f in found for e in f["evidence"])


def test_a_thousand_hosts_are_a_page_of_some_mb() -> None:
    rows = {"schema": 1, "hosts": [making.row(f"gpu{n:04}") for n in range(1000)], "unreachable": []}
    assert len(render(tree_of(rows))) < 3 << 20


# ---- memory


def test_the_service_is_split_by_the_plan_and_the_rest_is_measured(tree: dict[str, Any]) -> None:
    first = next(g for g in tree["memory"] if g["host"] == "gpu01")
    how = {s["kind"]: s["how"] for s in first["segments"]}
    assert how == {"weights": "planned", "draft": "planned", "kv": "planned", "graphs": "planned",
                   "runtime": "planned", "untold": "measured", "free": "rest"}  # fmt: skip
    assert sum(s["gib"] for s in first["segments"]) == pytest.approx(first["total_gib"], abs=0.03)


def test_without_a_plan_the_service_is_one_piece_with_the_reason(tree: dict[str, Any]) -> None:
    second = next(g for g in tree["memory"] if g["host"] == "gpu02")
    assert {s["kind"]: s["gib"] for s in second["segments"]} == {
        "service": 20.4,
        "other": 2.1,
        "untold": 0.4,
        "free": 1.09,
    }
    assert second["why"]["split"].startswith("no plan of this host")


def test_a_lost_card_has_no_zero() -> None:
    lost = memory_of({"host": "h", "gpus": [{"index": 1, "error": "GPU is lost"}]}, None, "")[0]
    assert lost["total_gib"] is lost["used_gib"] is lost["free_gib"] is None
    assert lost["why"] == {"memory": "GPU is lost"}
    assert lost["segments"] == []


def test_a_size_no_process_told_is_somebodys() -> None:
    told = memory_of(
        {"host": "h", "gpus": [making.gpu(0, 5.0, making.process(1) | {"bytes": {"missing": "denied"}})]},
        None,
        "",
    )
    assert next((s["kind"], s["label"]) for s in told[0]["segments"]) == (
        "untold",
        "in use, by whom is not known",
    )


# ---- charts


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (-3, 1), (float("nan"), 1), (float("inf"), 1), (7, 8), (2500, 2500), (2501, 4000)],
)
def test_the_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_top(value) == top


def series(*points: tuple[int, float, float, float]) -> list[dict[str, Any]]:
    return [{"label": "x", "strategy": "none", "points": [list(p) for p in points]}]


def test_a_doubling_is_one_step_and_more_is_higher() -> None:
    chart = by_concurrency("t", series((1, 10, 9, 11), (2, 20, 20, 20), (4, 40, 40, 40)), unit="u")
    assert chart is not None
    xs, ys = zip(*chart.lines[0].points, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert ys[0] > ys[1] > ys[2]
    assert len(chart.lines[0].whiskers) == 1
    assert chart.summary == "x: 10 at 1, 40 at 4"


def test_nothing_measured_is_no_chart() -> None:
    assert by_concurrency("t", [], unit="u") is None
    gaps = [{"label": "x", "kind": "none", "points": [{"at": "2026-11-02", "v": None}]}]
    assert over_time("t", gaps, "v", unit="u") is None


def test_a_gap_in_time_breaks_the_line() -> None:
    values = (1.0, 2.0, None, 3.0, 4.0)
    points = [{"at": f"2026-11-{n:02}T00:00:00Z", "v": v} for n, v in enumerate(values, 1)]
    chart = over_time("t", [{"label": "x", "kind": "none", "points": points}], "v", unit="u")
    assert chart is not None
    assert len(chart.lines[0].pieces) == 2
    assert len(chart.lines[0].points) == 4


def test_a_bar_is_never_wider_than_its_place() -> None:
    parts = slices([{"gib": 20.0}, {"gib": 9.0}], 24.0)
    assert sum(w for _, _, w in parts) == pytest.approx(1000, abs=0.5)


def test_trends_need_two_benches_of_one_kind(tree: dict[str, Any]) -> None:
    assert len(tree["trends"]) == 2
    points = tree["trends"][1]["series"][0]["points"]
    assert [p["at"][:10] for p in points] == ["2026-11-02", "2026-11-09", "2026-11-16", "2026-11-23"]
    other = making.bench() | {"taken_at": "2026-11-30T00:00:00Z", "baseline_key": "other"}
    assert tree_of(making.bench(), other)["trends"] == []


def test_a_busy_review_is_a_gap(tree: dict[str, Any]) -> None:
    points = tree["trends"][0]["series"][0]["points"]
    assert [p["tokens_per_s"] for p in points] == [201.0, 198.0, None, 192.0, 189.0]
    assert "6 % fewer tokens/s" in render(tree)


def test_a_bench_that_failed_is_named() -> None:
    failed = {
        "schema": 1,
        "task": "bench",
        "results": [],
        "failed": [{"host": "gpu09", "error": "no engine"}],
    }
    assert "bench of gpu09 was not read: no engine" in render(tree_of(failed))


@pytest.mark.parametrize("top", [1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 250.0, 400.0])
def test_ticks_are_round(top: float) -> None:
    chart = by_concurrency("t", series((1, top * 1000, top * 1000, top * 1000)), unit="u")
    assert chart is not None
    assert all(text.replace(",", "").rstrip("0")[:-1] in {"", *"123456789"} for _, text in chart.y_ticks)
