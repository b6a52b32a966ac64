"""All ranks' journals as one: the order of time, the earliest cause, waiting that ended."""

from checks.doctor import diagnose
from checks.doctor.group import group_report, merge_journals
from checks.doctor.model import Inputs
from checks.outcome import Status

DAY = "2026-12-01T01:"
HEAD = (
    f"{DAY}00:00+0000 gpu01 systemd[1]: Starting eyas-chat.service - eyas chat...\n"
    f"{DAY}00:01+0000 gpu01 python3[5]: eyas: waiting for rank 1 (gpu02, 10.0.0.2)\n"
    f"{DAY}00:02+0000 gpu01 python3[5]: eyas: the group is complete, generation 1764550802\n"
    f"{DAY}00:40+0000 gpu01 python3[5]: eyas: the group lost rank 1 (gpu02, 10.0.0.2): its engine ended (1):"
    " ending this rank's engine\n"
)
OTHER = (
    f"{DAY}00:01+0000 gpu02 systemd[1]: Starting eyas-chat.service - eyas chat...\n"
    f"{DAY}00:02+0000 gpu02 python3[7]: eyas: the group is complete, generation 1764550802\n"
    f"{DAY}00:39+0000 gpu02 python3[7]: Value error, Total number of attention heads (40) must be divisible"
    " by tensor parallel size (3).\n"
    "  a line without a stamp\n"
)


def test_lines_are_in_order_of_time_and_only_rank_0_begins_a_start() -> None:
    merged = merge_journals([("gpu01", HEAD), ("gpu02", OTHER)], {})
    lines = merged.splitlines()
    assert [line.split()[1] for line in lines if "generation" in line] == ["gpu01", "gpu02"]
    assert lines[-2:] == ["  a line without a stamp", HEAD.splitlines()[-1]]
    assert merged.count("Starting") == 1


def test_a_clock_that_is_ahead_is_set_back_for_the_order() -> None:
    late = OTHER.replace(f"{DAY}00:39", f"{DAY}05:39")
    assert merge_journals([("gpu01", HEAD), ("gpu02", late)], {}).rstrip().endswith("without a stamp")
    merged = merge_journals([("gpu01", HEAD), ("gpu02", late)], {"gpu02": 300.0})
    assert "its engine ended" in merged.splitlines()[-1]


def test_the_cause_in_one_ranks_words_comes_before_anothers_loss() -> None:
    merged = merge_journals([("gpu01", HEAD), ("gpu02", OTHER)], {})
    report = group_report("chat on gpu01, gpu02", merged, Inputs(), [], {"gpu03": "no route"})
    assert [(f.slug, f.root) for f in report.findings][:2] == [
        ("tp-heads-indivisible", True),
        ("rank-died", False),
    ]
    assert report.verdict.startswith("chat on gpu01, gpu02: ")
    assert [o.data["host"] for o in report.outcomes if o.status is Status.UNKNOWN and o.data] == ["gpu03"]


def test_waiting_that_ended_is_no_finding() -> None:
    text = "".join(HEAD.splitlines(keepends=True)[:3])
    assert diagnose(Inputs(log=[text.encode()])).findings == ()


def test_nothing_to_read_is_unknown_and_not_well() -> None:
    report = group_report("chat", "", Inputs(), [], {})
    assert [o.status for o in report.outcomes if o.check == "log"] == [Status.UNKNOWN]
