"""Cut off at any point: what served goes on serving, and the second run finishes."""

import json
import signal
from collections.abc import Callable

import pytest

from inventory.model import Deployment
from provision import release
from provision.converge import HostReport
from tests.lab.provision.stage import Caller, Command, Stage, eventually

pytestmark = pytest.mark.lab


def fails_at_start(stage: Stage, fault: str, head: str | None = "head-b") -> Deployment:
    """A deployment whose engine alone reads this fault."""
    file = stage.engine({"fault": fault, "start_s": 0.2}, file="new")
    return stage.deployment(head, env={"EYAS_STANDIN_FILE": file})


# ---- the first time there is nothing to go back to


def test_a_first_start_that_fails_leaves_nothing_enabled(stage: Stage) -> None:
    report = stage.run(fails_at_start(stage, "oom-weights", None))
    assert (report.exit_code, report.status) == (5, "failed")
    assert "did not become ready" in report.error
    assert "out of memory" in report.error.lower(), report.error
    assert "doctor" in report.hint
    assert stage.current() == ""
    assert stage.sh("systemctl is-enabled eyas-chat eyas-chat-health.timer || true") == "disabled\ndisabled"
    assert stage.sh("systemctl is-active eyas-chat || true") in {"inactive", "failed"}


KILLED: dict[str, str] = {
    "wheels": "installing wheels",
    "weights": "download eyas-lab/target",
    "release": "release ",
    "switch": "serve release",
    "proof": "proof: ",
}


@pytest.mark.parametrize("at", KILLED)
def test_a_killed_operator_at_each_step_of_a_first_run(stage: Stage, at: str) -> None:
    stage.sh(
        "systemctl disable -q --now eyas-chat.service eyas-chat-health.timer 2>/dev/null;"
        "cd /var/lib/eyas && rm -rf releases/* current/* former weights/*;"
        + ("rm -rf /opt/eyas/envs/*" if at == "wheels" else "")
    )
    stage.hub.faults.add("/lfs/.*target", rate=1_000_000)
    operator = stage.start(stage.deployment())
    operator.says(KILLED[at])
    operator.kill()
    operator.finish()
    stage.hub.faults.clear()
    report = eventually_free(stage, stage.deployment())
    assert report.exit_code == 0, report.error
    assert stage.answers()
    assert stage.run(stage.deployment()).status == "ok"
    assert not stage.sh(
        "find /var/lib/eyas /opt/eyas -name '*.partial' -o -name '*.incomplete' -o -name '*.new'"
    )
    assert not stage.sh("ls -A /etc/systemd/system | grep '^\\.eyas' || true")


def eventually_free(stage: Stage, d: Deployment) -> HostReport:
    """Run; a lock whose operator was killed is free within a moment."""

    def run() -> HostReport | None:
        report = stage.run(d)
        return None if report.status == "locked" else report

    report = eventually(run, within=90, what="the dead operator's lock")
    assert isinstance(report, HostReport)
    return report


# ---- afterwards something serves, and goes on


Cut = Callable[[Stage, Command], None]


def by_ctrl_c(stage: Stage, operator: Command) -> None:
    operator.kill(signal.SIGINT)
    code, _, said = operator.finish()
    assert code == 130
    assert "run the same command again" in said
    assert "Traceback" not in said


def by_killed_sessions(stage: Stage, operator: Command) -> None:
    stage.lab.fault("gpu01", "sessions-killed")
    code, _, said = operator.finish()
    assert code == 3, said
    assert "Traceback" not in said


def by_a_pulled_cable(stage: Stage, operator: Command) -> None:
    stage.lab.fault("gpu01", "link-down")
    try:
        code, out, said = operator.finish()
        assert code == 3, said
        assert "run the same command again" in out + said
    finally:
        stage.lab.heal("gpu01")


@pytest.mark.parametrize("cut", [by_ctrl_c, by_killed_sessions, by_a_pulled_cable])
def test_what_serves_goes_on_while_weights_are_cut_off(stage: Stage, cut: Cut) -> None:
    assert stage.run(stage.deployment()).exit_code == 0
    stage.sh("rm -rf /var/lib/eyas/weights/eyas-lab--head-b-* /var/lib/eyas/releases/.*.partial")
    stage.hub.faults.add("/lfs/.*head-b", rate=4000)
    with Caller(stage) as caller:
        operator = stage.start(stage.deployment("head-b"))
        operator.says("download eyas-lab/head-b")
        cut(stage, operator)
        stage.hub.faults.clear()
        caller.answered()
    # The work of the one that is gone is ended by whoever comes next.
    report = eventually_free(stage, fails_at_start(stage, "oom-kv"))
    assert report.exit_code == 6, report.error
    assert stage.answers()
    assert not stage.sh("pgrep -f [l]ib/fetch.py || true")


def test_a_reboot_in_the_middle(stage: Stage) -> None:
    stage.sh("rm -rf /var/lib/eyas/weights/eyas-lab--head-b-*")
    stage.hub.faults.add("/lfs/.*head-b", rate=4000)
    operator = stage.start(stage.deployment("head-b"))
    operator.says("download eyas-lab/head-b")
    stage.on().reboot()
    code, _, said = operator.finish()
    assert code == 3, said
    stage.hub.faults.clear()
    eventually(stage.answers, within=40, what="the service after the reboot")
    assert stage.run(stage.deployment()).exit_code == 0


# ---- a new release that fails


@pytest.mark.parametrize("fault", ["oom-graphs", "wrong-head", "stuck-start"])
def test_the_former_release_returns(stage: Stage, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage.run(stage.deployment()).exit_code == 0
    former = stage.current()
    monkeypatch.setattr(release, "_timeout_start_s", lambda _: 20 if fault != "stuck-start" else 6)
    report = stage.run(fails_at_start(stage, fault))
    assert (report.exit_code, report.status) == (6, "rolled-back"), report.error
    assert "the former release serves again" in report.error
    assert stage.current() == former
    assert stage.answers()
    assert stage.sh("systemctl is-active eyas-chat eyas-chat-health.timer") == "active\nactive"
    monkeypatch.undo()
    assert stage.run(stage.deployment()).status == "ok"


def test_the_host_goes_back_by_itself_when_the_operator_is_gone(stage: Stage) -> None:
    assert stage.run(stage.deployment()).exit_code == 0
    former = stage.current()
    stage.engine({"fault": "oom-sampler", "start_s": 3}, file="new")
    d = stage.deployment("head-b", env={"EYAS_STANDIN_FILE": "/etc/eyas-lab/new.fault"})
    operator = stage.start(d)
    operator.says("serve release")
    eventually(lambda: stage.current() not in {former, ""}, within=20, what="the switch")
    operator.kill()
    operator.finish()
    eventually(lambda: stage.current() == former and stage.answers(), within=40, what="the former release")
    eventually(lambda: not stage.sh("ls /var/lib/eyas/former"), within=20, what="the end of the way back")


def test_a_switch_that_a_power_cut_ended_still_knows_what_served(stage: Stage) -> None:
    assert stage.run(stage.deployment()).exit_code == 0
    former = stage.current()
    stage.engine({"fault": "oom-sampler", "start_s": 5}, file="new")
    d = stage.deployment("head-b", env={"EYAS_STANDIN_FILE": "/etc/eyas-lab/new.fault"})
    operator = stage.start(d)
    operator.says("serve release")
    eventually(lambda: stage.current() not in {former, ""}, within=20, what="the switch")
    stage.on().power_off()
    operator.kill()
    operator.finish()
    stage.on().power_on()
    stage.on().wait_ssh()
    report = stage.run(d)
    assert (report.exit_code, report.status) == (6, "rolled-back"), report.error
    assert stage.current() == former
    assert stage.answers()


# ---- two operators


def test_the_second_operator_is_told_who_works_here(stage: Stage) -> None:
    assert stage.run(stage.deployment()).exit_code == 0
    stage.sh("rm -rf /var/lib/eyas/weights/eyas-lab--head-b-*")
    stage.hub.faults.add("/lfs/.*head-b", rate=4000)
    first = stage.start(stage.deployment("head-b"))
    first.says("download eyas-lab/head-b")
    log, first.log = first.log, first.log + ".first"
    (stage.folder / "command.log").rename(first.log)
    code, out, _ = stage.command(stage.deployment("head-b"), "--json")
    [host] = json.loads(out)["hosts"]
    assert (code, host["status"]) == (5, "locked")
    assert "works on this host since" in host["error"]
    assert "provision chat" in host["error"]
    assert stage.run(stage.deployment(), check=True).status == "ok"
    first.kill()
    first.finish()
    del log
    stage.hub.faults.clear()
    assert eventually_free(stage, stage.deployment()).exit_code == 0
