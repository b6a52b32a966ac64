"""The simulation stands for the product: the tree and its bound, a rollout that died, growth."""

import math
import time
from pathlib import Path

import pytest

from inventory.errors import UsageError
from provision.rollout.record import Record
from provision.rollout.tree import Copied, Tree
from tests.scale import distribution, look, rollout, simulate
from tests.scale.parameters import Copy, load

EXACT = Copy(source="none: a world without overheads", start_s=1e-9, verify_mb_s=1e15, stream_mb_s=1e15)
SIZE, LINK = 1e9, 25e6


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.parametrize("hosts", [2, 20, 300])
def test_fan_out_one_is_the_best_tree_of_whole_copies(hosts: int) -> None:
    got = distribution.simulate(hosts, SIZE, LINK, EXACT, fanout=1, width=hosts)
    assert got.seconds == pytest.approx(SIZE / LINK * (1 + math.ceil(math.log2(hosts))), rel=1e-6)
    assert got.copies == hosts - 1


@pytest.mark.parametrize("fanout", [1, 2, 3])
@pytest.mark.parametrize("hosts", [2, 20, 300])
def test_the_products_fan_out_stays_within_twice_the_best(hosts: int, fanout: int) -> None:
    best = distribution.simulate(hosts, SIZE, LINK, EXACT, fanout=1, width=hosts).seconds
    assert (
        best <= distribution.simulate(hosts, SIZE, LINK, EXACT, fanout=fanout).seconds * 1.000001 <= 2 * best
    )


def test_a_stream_slower_than_the_link_makes_fan_out_worth_it() -> None:
    slow = EXACT.model_copy(update={"stream_mb_s": LINK / 4e6})
    one, four = (distribution.simulate(50, SIZE, LINK, slow, fanout=f).seconds for f in (1, 4))
    assert four < one / 1.5


def test_few_at_once_cost_a_large_fleet_its_tree() -> None:
    few, many = (distribution.simulate(500, SIZE, LINK, EXACT, width=w).seconds for w in (20, 256))
    assert few > 2 * many


def test_a_rollout_that_died_half_way_is_finished_by_resume(tmp_path: Path) -> None:
    found = rollout.simulate(250, tmp_path, die_at=120)
    assert found["batches"] == 7
    assert found["journal_bytes"] < 3000 * 250
    journals = list(tmp_path.glob("*.jsonl"))
    assert len(journals) == 1
    events = [e["event"] for e in Record(journals[0]).events]
    assert (events.count("plan"), events.count("resume"), events[-1]) == (1, 1, "end")
    assert events.count("done") == 250


def test_recalling_a_long_journal_is_linear(tmp_path: Path) -> None:
    spent = []
    for hosts in (40, 160):
        record = Record.new(rollout.plan_of(hosts), tmp_path / str(hosts))
        rollout.loop_of(record, rollout.Crew()).run()
        again = Record(record.path)
        began = time.process_time()
        rollout.loop_of(again, rollout.Crew())._recall()
        spent.append(time.process_time() - began)
    assert spent[1] < 12 * max(spent[0], 0.002), spent


def test_ten_thousand_pairs_are_planned_in_a_second() -> None:
    names = [f"gpu{n:05}" for n in range(10_000)]
    tree, began = Tree(names[:1], names[1:]), time.process_time()
    while tree.waiting or tree.busy:
        while tree.next():
            pass
        for pair in list(tree.busy):
            tree.ended(*pair, Copied.OK)
    assert len(tree.have) == 10_000
    assert time.process_time() - began < 3


def test_looks_take_longer_with_more_hosts_and_never_less_than_one_core_allows() -> None:
    known = load().look
    times = [look.seconds(n, 20, known) for n in (10, 100, 1000, 10_000)]
    assert times == sorted(times)
    assert look.seconds(10_000, 500, known) >= 10_000 * known.operator_cpu_ms / 1000


@pytest.mark.parametrize("hosts", ["", "x", "1", "1000,", "200000"])
def test_a_fleet_of_no_size_is_refused(hosts: str) -> None:
    with pytest.raises(UsageError):
        simulate.simulate_fleet(hosts, 65, 1000, 20, as_json=True, say=print)


@pytest.mark.parametrize(("gigabytes", "mbit", "forks"), [(0, 1000, 20), (65, 0, 20), (65, 1000, 0)])
def test_senseless_links_are_refused(gigabytes: float, mbit: float, forks: int) -> None:
    with pytest.raises(UsageError):
        simulate.simulate_fleet("10", gigabytes, mbit, forks, as_json=True, say=print)
