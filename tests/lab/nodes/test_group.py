"""Two hosts as one, in the order of a group's life: switched, lost, healed, rolled back together."""

import json

import pytest

from tests.lab.nodes.group import HOSTS, GroupFleet

pytestmark = pytest.mark.lab


def slugs(report: dict[str, object]) -> list[str]:
    findings = report["findings"]
    assert isinstance(findings, list)
    return [f["slug"] for f in findings if f["root"]]


def test_both_hosts_serve_one_release_and_a_second_run_changes_nothing(group: GroupFleet) -> None:
    code, document, log = group.provision("one", "--check")
    assert (code, group.states()) == (0, dict.fromkeys(HOSTS, "inactive")), log
    code, document, log = group.provision("one")
    assert code == 0, log + json.dumps(document)
    assert len({h["release"] for h in document["hosts"]}) == 1
    assert group.serves("one")
    code, document, log = group.provision("one")
    assert (code, [(h["status"], h["changed"]) for h in document["hosts"]]) == (0, [("ok", 0)] * 2), log
    told = json.loads(group.run("drift", "--limit", "gpu", "--json").stdout)
    assert [g["hosts"] for g in told["groups"]] == [list(HOSTS)]
    assert [g["differences"] for g in told["groups"]] + [h["differences"] for h in told["hosts"]] == [[]] * 3


def test_half_a_group_is_refused(group: GroupFleet) -> None:
    got = group.run("provision", "--host", HOSTS[0], "--deployment", str(group.deployment("one")))
    assert got.returncode == 2
    assert "takes 2 nodes, and 1 host is selected" in got.stderr


@pytest.mark.parametrize("name", HOSTS)
def test_a_killed_rank_takes_the_group_down_and_back(group: GroupFleet, name: str) -> None:
    group.sh(f"kill -9 {group.engine(name)}", name)
    group.gone(within=10)
    group.back("one")


def test_a_stopped_rank_holds_the_group_until_it_is_started(group: GroupFleet) -> None:
    group.sh("systemctl stop eyas-fl.service", HOSTS[1])
    report = group.doctor()
    assert slugs(report)[0] == "service-not-running", report["verdict"]
    assert report["findings"][0]["host"] == HOSTS[1]
    group.gone(within=15)
    group.until(lambda: group.waits(HOSTS[0], 1), within=15, what="rank 0 waits")
    group.sh("systemctl start --no-block eyas-fl.service", HOSTS[1])
    group.back("one")


def test_a_failed_switch_puts_both_hosts_back(group: GroupFleet) -> None:
    group.fault(HOSTS[1], "bad", fault="stuck-start")
    group.fault(HOSTS[0], "bad", fault="oom-kv")
    code, document, log = group.provision("bad")
    assert code == 6, log + json.dumps(document)
    assert [h["status"] for h in document["hosts"]] == ["rolled-back"] * 2
    assert "out of memory" in document["hosts"][0]["error"].lower() or "kv" in document["hosts"][0]["error"]
    group.back("one", within=5)


def test_a_cut_cable_is_named_and_heals(group: GroupFleet) -> None:
    group.lab.fault(HOSTS[1], "link-down")
    group.gone(within=30)
    report = group.doctor()
    assert slugs(report)[0] in {"rank-silent", "rank-absent"}, report["verdict"]
    assert "could not look" in json.dumps(report) or HOSTS[1] in report["verdict"]
    group.lab.heal(HOSTS[1])
    group.back("one")


def test_a_firewall_between_the_hosts_is_refused_before_the_switch(group: GroupFleet) -> None:
    group.lab.fault(HOSTS[1], "port-rejected", "29501")
    try:
        code, document, log = group.provision("walled")
    finally:
        group.lab.heal(HOSTS[1])
    assert code == 4, log + json.dumps(document)
    assert "rank-unreachable: from 10." in document["hosts"][0]["error"]
    assert "port 29501" in document["hosts"][0]["error"]
    group.back("one", within=5)


def test_a_rollout_moves_the_group_as_one_and_back(group: GroupFleet) -> None:
    got = group.rollout_group("two")
    assert got.returncode == 0, got.stderr + got.stdout
    assert [h["status"] for h in json.loads(got.stdout)["hosts"]] == ["done"]
    assert group.serves("two")
    group.fault(HOSTS[0], "half", acceptance=0.35)
    got = group.rollout_group("half")
    assert got.returncode == 6, got.stderr + got.stdout
    group.back("two", within=5)
    file = str(group.deployment("two"))
    got = group.run("rollback", "--limit", "gpu", "--deployment", file, "--yes", "--json")
    assert got.returncode == 0, got.stderr + got.stdout
    group.back("one", within=5)


def test_a_reboot_and_a_lost_head(group: GroupFleet) -> None:
    group.lab.host(HOSTS[1]).reboot()
    group.back("one")
    group.lab.fault(HOSTS[0], "power-off")
    group.gone(within=40)
    group.until(lambda: group.waits(HOSTS[1], 0), within=40, what="rank 1 waits")
    report = group.doctor()
    assert slugs(report)[0].startswith("rank-"), report["verdict"]
    group.lab.heal(HOSTS[0])
    group.back("one")
