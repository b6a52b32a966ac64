"""The real engine over two hosts by its own --nnodes: served, supervised, diagnosed, rolled back as one."""

import pytest

from tests.lab.nodes.pair import HOSTS, Pair

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.long]
#: Seconds two cores need to start both ranks again, with what else runs there.
START_S = 240
ACTIVE = "systemctl is-active eyas-chat.service"


def test_two_hosts_say_what_one_says(pair: Pair) -> None:
    reports = pair.together(pair.deployment(tensor_parallel=2, nodes=2))
    assert [(r.status, r.error) for r in reports] == [("changed", "")] * 2
    assert len({r.release for r in reports}) == 1
    proof = pair.proof()
    assert proof["outputs"] == pair.alone_said
    assert proof["acceptance_rate"] > 0.3
    assert pair.states() == ["active"] * 2
    again = pair.together(pair.deployment(tensor_parallel=2, nodes=2))
    assert [(r.status, r.changed) for r in again] == [("ok", 0)] * 2


def test_a_killed_rank_takes_the_group_down_and_back(pair: Pair) -> None:
    before = [pair.restarts(h) for h in HOSTS]
    pair.sh(f"kill -9 {pair.worker(HOSTS[1])}", HOSTS[1])
    pair.down(within=30)
    report = pair.doctor()
    assert report.findings, report.verdict
    # A SIGKILL that nobody owns up to reads like the kernel's OOM killer.
    assert report.findings[0].slug in {"worker-died", "rank-died", "host-ram-oom"}
    pair.back(within=START_S)
    assert [pair.restarts(h) for h in HOSTS] == [n + 1 for n in before]


def test_a_failed_switch_puts_both_hosts_back(pair: Pair) -> None:
    former = pair.current()
    reports = pair.together(pair.deployment(tensor_parallel=2, nodes=2, max_model_len=4096))
    assert [r.status for r in reports] == ["rolled-back"] * 2, [r.error for r in reports]
    assert [pair.current(h) for h in HOSTS] == [former] * 2
    assert pair.states() == ["active"] * 2
    assert pair.answers()


def test_a_cut_cable_is_named_and_healed_by_itself(pair: Pair) -> None:
    pair.lab.fault(HOSTS[1], "link-down")
    try:
        pair.down(within=60)
        report = pair.doctor()
        assert report.findings[0].slug in {"rank-silent", "rank-absent", "rank-unreachable"}
        assert "could not" in report.verdict or HOSTS[1] in report.verdict
    finally:
        pair.lab.heal(HOSTS[1])
    pair.back(within=START_S)


def test_a_rebooted_host_comes_back_with_its_group(pair: Pair) -> None:
    pair.lab.host(HOSTS[1]).reboot()
    pair.back(within=START_S, after=20)


def test_without_rank_0_the_others_wait_and_say_for_whom(pair: Pair) -> None:
    pair.lab.fault(HOSTS[0], "power-off")
    pair.until(lambda: pair.sh(ACTIVE, HOSTS[1], check=False) != "active", within=60)
    pair.until(lambda: "waiting for rank 0" in pair.journal(HOSTS[1], 5), within=60)
    assert pair.sh(ACTIVE, HOSTS[1], check=False) == "activating"
    report = pair.doctor()
    assert report.findings[0].slug in {"rank-unreachable", "rank-absent", "rank-silent"}, report.verdict
    assert HOSTS[0] in report.findings[0].cause + report.verdict
    pair.lab.heal(HOSTS[0], "power-off")
    pair.back(within=START_S)


def test_pipeline_parallel_says_the_same(pair: Pair) -> None:
    # With enforce_eager the CPU build never makes the buffers that a stage receives into (AssertionError on
    # the first request: `self.intermediate_tensors is not None`).
    d = pair.deployment(None, pipeline_parallel=2, nodes=2, enforce_eager=False)
    reports = pair.together(d)
    assert [(r.status, r.error) for r in reports] == [("changed", "")] * 2
    assert pair.proof()["outputs"] == pair.alone_said
