"""All ranks' journals as one: the order of time, the earliest cause, waiting that ended."""

import pytest

from checks.doctor import diagnose
from checks.doctor.group import group_report, merge_journals, stopped
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


LOST = (
    f"{DAY}00:40+0000 gpu01 python3[5]: eyas: the group lost rank 1 (gpu02, 10.0.0.2): it was stopped: ending"
)
WAITS = f"{DAY}00:41+0000 gpu01 python3[6]: eyas: waiting for rank 1 (gpu02, 10.0.0.2)"
AGAIN = f"{DAY}00:41+0000 gpu01 systemd[1]: Starting eyas-chat.service - eyas chat..."
STOPPING = f"{DAY}00:40+0000 gpu02 systemd[1]: Stopping eyas-chat.service - eyas chat..."
BEFORE = "".join(HEAD.splitlines(keepends=True)[:3])


def state(active: str, result: str = "success") -> dict[str, str]:
    return {"active": active, "result": result, "enabled": "enabled", "load": "loaded"}


@pytest.mark.parametrize("active", ["inactive", "deactivating"])
@pytest.mark.parametrize("told", [[], [LOST], [LOST, AGAIN], [LOST, AGAIN, WAITS]])
def test_a_unit_that_was_stopped_is_the_cause_whenever_one_asks(told: list[str], active: str) -> None:
    head = BEFORE + "".join(f"{line}\n" for line in told)
    down = stopped("gpu02", "eyas-chat.service", state(active), f"{OTHER}{STOPPING}\n")
    assert down
    merged = merge_journals([("gpu01", head), ("gpu02", STOPPING)], {})
    report = group_report("chat on gpu01, gpu02", merged, Inputs(), [], {}, [down])
    assert [(f.slug, f.host) for f in report.findings if f.root] == [("service-not-running", "gpu02")]
    assert "eyas-chat.service on gpu02 is inactive" in report.verdict
    assert "systemctl start eyas-chat.service" in report.findings[0].fix[0].command


def test_a_unit_that_gave_up_comes_after_its_own_cause() -> None:
    down = stopped("gpu02", "eyas-chat.service", state("failed", "start-limit-hit"), OTHER)
    assert down
    merged = merge_journals([("gpu01", HEAD), ("gpu02", OTHER)], {})
    report = group_report("chat on gpu01, gpu02", merged, Inputs(), [], {}, [down])
    assert [(f.slug, f.root) for f in report.findings] == [
        ("tp-heads-indivisible", True),
        ("rank-died", False),
        ("service-not-running", False),
    ]


@pytest.mark.parametrize(
    "now",
    [
        state("active"),
        state("activating"),
        state("deactivating"),
        {**state("inactive"), "load": "not-found"},
        {},
    ],
)
def test_a_unit_that_runs_or_tries_to_is_not_stopped(now: dict[str, str]) -> None:
    assert stopped("gpu02", "eyas-chat.service", now, OTHER) is None
