"""What `--install-driver` decides, from recorded hosts; how its steps act when the operator agrees or not."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from checks.facts import HostFacts
from checks.preconditions import Floors
from inventory.errors import ChangeFailed, CheckRefused, EyasError, HostUnreachable
from inventory.hardware import load_drivers
from inventory.model import Host
from provision import driver as steps
from provision.apt import AptState, Simulation, parse_look, parse_simulation, upstream, way_out
from provision.change import Change
from provision.driver import plan_driver
from provision.drivergoal import choose
from provision.drivertodo import decide, is_driver_package, refuse_simulation, specs_for
from provision.reboot import reboot
from provision.run import confirmer
from provision.shell import Result
from tests.test_preconditions import facts_of

TABLE = tomllib.loads((Path(__file__).parent / "driver" / "plan.toml").read_text())
FLOOR = "580"


def plan(case: dict[str, Any], confirm: Callable[[str, str], bool] = lambda _h, _q: False) -> list[Change]:
    facts, floor = facts_of(case), case.get("floor", FLOOR)
    apt = AptState(**{**TABLE["defaults"]["apt"], **case.get("apt", {})})
    goal = choose(facts, floor, load_drivers())
    if goal is None:
        return []
    specs = specs_for(facts, floor, goal, apt)
    todo = decide(facts, goal, specs, apt)
    if specs:
        refuse_simulation(facts, goal, Simulation(**case.get("sim", {})), apt, 200)
    return plan_driver(todo, load_drivers(), confirm, lambda _: None)


@pytest.mark.parametrize("case", TABLE["case"], ids=lambda c: c["name"].replace(" ", "-"))
def test_case(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(CheckRefused) as e:
            plan(case)
        assert case["refused"] in e.value.message
        assert e.value.hint
        return
    changes = plan(case)
    assert [c.title for c in changes] == case["changes"]
    if "diff" in case:
        assert [c.diff for c in changes if c.diff] == ["\n".join(case["diff"])]
    assert [c.title for c in changes if c.disruptive] == [t for t in case["changes"] if "reboot" in t]


def test_a_reboot_says_what_it_ends() -> None:
    units = {"eyas-coder.service": {"active": "active"}, "eyas-old.service": {"active": "inactive"}}
    case = {"host": "h200x2-mismatch", "facts": {"eyas.units": units, "gpus": [{"processes": [{"pid": 7}]}]}}
    ends = "(ends: eyas-coder.service, 1 program(s) on the cards)"
    assert plan(case)[-1].title.endswith(ends)


# ---- the steps on a host ------------------------------------------------------------------------------


@dataclass
class FakeHost:
    """Answers by the command's words; records what was run and written. ``boots``: boot ids, one a read."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    boots: list[bytes | None] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    wrote: dict[str, str] = field(default_factory=dict)
    host: Host = field(default_factory=lambda: Host(name="gpu01", address="192.0.2.1"))

    def run(self, argv: tuple[str, ...], *, check: bool = True, **_: Any) -> Result:
        line = " ".join(argv[argv.index("bash", 1) + 2 :] if argv[0] == "bash" else argv)
        self.ran.append(line)
        code, said = next((a for words, a in self.answers.items() if words in line), (0, ""))
        if check and code:
            raise ChangeFailed(line, host="gpu01")
        return Result(argv, code, said, "", 0.0)

    def write(self, path: str, data: bytes, **_: Any) -> None:
        self.wrote[path] = data.decode()

    def read(self, _: str) -> bytes | None:
        boot = self.boots.pop(0) if len(self.boots) > 1 else self.boots[0]
        if boot is None:
            raise HostUnreachable("no SSH connection", host="gpu01")
        return boot

    def reconnect(self, *, deadline: float) -> None:
        assert deadline > 0


def apply(case: dict[str, Any], host: FakeHost, *, yes: bool = True) -> EyasError | None:
    for change in plan(case, lambda _h, _q: yes):
        try:
            change.apply(host)  # type: ignore[arg-type]
        except EyasError as e:
            return e
    return None


NONE = {"host": "rtx4090x2-no-driver"}
HELD = {
    "host": "rtx4090x2-570",
    "facts": {
        "driver.unattended_upgrades": {
            "installed": True,
            "enabled": True,
            "blacklist": ["nvidia-driver-570$"],
        }
    },
}
INSTALLED = (
    "installed nvidia-driver-580-open\ninstalled libnvidia-compute-580\nnot-installed nvidia-utils-580\n"
    "installed nvidia-container-toolkit\ninstalled nvidia-settings\n"
)


def healthy() -> FakeHost:
    return FakeHost(
        {"modinfo": (0, "580.159.04\n"), "dpkg-query": (0, INSTALLED)}, [b"one\n", b"one\n", None, b"two\n"]
    )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_installs_holds_and_reboots_in_order() -> None:
    host = healthy()
    assert apply(HELD, host) is None
    told = [line.split(" -o ")[0] for line in host.ran]
    assert told[0] == "apt-mark unhold nvidia-driver-570"
    assert host.ran[1].endswith("install nvidia-driver-580-open=580.159.04-0ubuntu0.24.04.1")
    assert "DPkg::Lock::Timeout=300" in host.ran[1]
    assert host.ran[-2:] == [
        "apt-mark hold libnvidia-compute-580 nvidia-driver-580-open",
        "systemctl reboot",
    ]
    kept = host.wrote[steps.KEEP_FILE]
    assert '"nvidia-driver-580-open$";' in kept
    assert "container-toolkit" not in kept


def test_without_a_yes_the_host_is_not_rebooted() -> None:
    host = healthy()
    e = apply(NONE, host, yes=False)
    assert isinstance(e, ChangeFailed)
    assert e.message == "driver 580.159.04 is installed, the reboot is pending"
    assert "--yes" in e.hint
    assert "systemctl reboot" not in host.ran
    assert "/run/eyas/driver-needs-reboot" in host.wrote


@pytest.mark.parametrize("said", [(1, ""), (0, "570.172.08\n")])
def test_no_reboot_into_a_kernel_without_the_module(said: tuple[int, str]) -> None:
    host = healthy()
    host.answers["modinfo"] = said
    e = apply(NONE, host)
    assert isinstance(e, ChangeFailed)
    assert "was not rebooted" in e.message
    assert "systemctl reboot" not in host.ran


@pytest.mark.parametrize(
    ("said", "way"),
    [
        (
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)",
            "wait",
        ),
        ("E: You don't have enough free space in /var/cache/apt/archives/.", "make room"),
        ("dpkg: error: cannot copy extracted data: failed to write (No space left on device)", "make room"),
        ("E: Held packages were changed and -y was used without --allow-change-held-packages.", "unhold"),
        ("E: Unable to locate package nvidia-driver-580-open", "restricted"),
        ("E: Failed to fetch http://archive.ubuntu.com/x.deb  404  Not Found", "package source"),
        ("Error! Bad return status for module build on kernel: 6.8.0-79-generic (x86_64)", "make.log"),
        (
            "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'",
            "run the same command again",
        ),
        ("E: something new", "/var/log/eyas-apt.log"),
    ],
)
def test_apt_failing_ends_with_its_own_words_and_a_way_out(said: str, way: str) -> None:
    host = healthy()
    host.answers["install nvidia-driver"] = (100, f"Reading package lists...\n{said}\n")
    e = apply(NONE, host)
    assert isinstance(e, ChangeFailed)
    assert said in e.message
    assert way in e.hint
    assert way_out(said) == e.hint


def test_a_reboot_that_never_ends_is_told() -> None:
    with pytest.raises(HostUnreachable) as e:
        reboot(FakeHost(boots=[b"one", None]), deadline=0.05, step=0.0)  # type: ignore[arg-type]
    assert "not back" in e.value.message


def test_a_host_that_refuses_to_reboot_is_told() -> None:
    host = FakeHost({"systemctl reboot": (1, "Access denied")}, [b"one"])
    with pytest.raises(ChangeFailed, match="Access denied"):
        reboot(host)  # type: ignore[arg-type]


# ---- apt's words ---------------------------------------------------------------------------------------

LOOK = """\
@@ policy
nvidia-driver-580-open:
  Installed: (none)
  Candidate: 580.173.02-0ubuntu0.24.04.1
  Version table:
     580.173.02-0ubuntu0.24.04.1 500
        500 http://archive.ubuntu.com/ubuntu noble-updates/restricted amd64 Packages
     580.65.06-0ubuntu0.24.04.1 500
        500 http://archive.ubuntu.com/ubuntu noble/restricted amd64 Packages
nvidia-fabricmanager-580:
  Installed: 580.95.05-0ubuntu0.24.04.2
  Candidate: 580.95.05-0ubuntu0.24.04.2
  Version table:
 *** 580.95.05-0ubuntu0.24.04.2 100
        100 /var/lib/dpkg/status
nvidia-driver-999:
  Installed: (none)
  Candidate: (none)
  Version table:
@@ interrupted
 nvidia-dkms-580-open NVIDIA DKMS package
@@ free
/ 1234567
/boot 42
@@ mark
yes
"""


def test_reads_what_apt_knows() -> None:
    state = parse_look(LOOK, fresh=True)
    assert state == AptState(
        candidates={
            "nvidia-driver-580-open": "580.173.02-0ubuntu0.24.04.1",
            "nvidia-fabricmanager-580": "580.95.05-0ubuntu0.24.04.2",
        },
        versions={
            "nvidia-driver-580-open": ("580.173.02-0ubuntu0.24.04.1", "580.65.06-0ubuntu0.24.04.1"),
            "nvidia-fabricmanager-580": ("580.95.05-0ubuntu0.24.04.2",),
            "nvidia-driver-999": (),
        },
        interrupted=("nvidia-dkms-580-open NVIDIA DKMS package",),
        free={"/": 1234567, "/boot": 42},
        marked=True,
        fresh=True,
    )
    assert parse_look("") == AptState()


SIMULATED = """\
Reading package lists...
The following packages will be REMOVED:
  libnvidia-compute-535 nvidia-driver-535
The following NEW packages will be installed:
  libnvidia-compute-580
  nvidia-driver-580-open
0 upgraded, 2 newly installed, 2 to remove and 3 not upgraded.
Need to get 322 MB of archives.
After this operation, 1,024 MB of additional disk space will be used.
'http://archive.ubuntu.com/ubuntu/pool/x_amd64.deb' x_amd64.deb 322000000 SHA512:00
"""
UNMET = """\
Some packages could not be installed.
The following packages have unmet dependencies:
 nvidia-driver-580-open : Depends: nvidia-dkms-580-open (= 580.1) but 580.2 is to be installed
"""


def test_reads_what_an_install_would_do() -> None:
    assert parse_simulation(SIMULATED, "", 0) == Simulation(
        new=("libnvidia-compute-580", "nvidia-driver-580-open"),
        removed=("libnvidia-compute-535", "nvidia-driver-535"),
        download=322_000_000,
        unpack=1_024_000_000,
    )
    failed = parse_simulation(UNMET, "E: Unable to correct problems, you have held broken packages.\n", 100)
    assert "nvidia-dkms-580-open (= 580.1)" in failed.error
    assert "held broken" in failed.error


@pytest.mark.parametrize("said", [SIMULATED, ""])
def test_a_failure_without_words_is_still_one(said: str) -> None:
    assert parse_simulation(said, "", 100).error == "apt-get exited 100"


@pytest.mark.parametrize(
    ("version", "told"),
    [("580.1.2-0ubuntu0.24.04.1", "580.1.2"), ("2:580.1-1", "580.1"), ("", ""), (None, ""), ("x", "")],
)
def test_upstream(version: str | None, told: str) -> None:
    assert upstream(version) == told


def test_which_packages_are_the_drivers() -> None:
    mine = {
        "nvidia-driver-580-server-open",
        "libnvidia-cfg1-580-server",
        "nvidia-fabricmanager-580",
        "nvidia-firmware-580-580.159.04",
        "linux-modules-nvidia-580-generic",
        "xserver-xorg-video-nvidia-580",
    }
    others = {
        "nvidia-settings",
        "nvidia-container-toolkit",
        "libnvidia-compute-570",
        "linux-headers-6.8.0-580",
    }
    assert {n for n in mine | others if is_driver_package(n, "580.159.04")} == mine


# ---- the catalogue --------------------------------------------------------------------------------------


def test_chips_do_not_overlap_and_know_the_recorded_cards() -> None:
    chips = sorted(load_drivers().chip, key=lambda c: int(c.first, 16))
    assert all(int(c.first, 16) <= int(c.last, 16) for c in chips)
    assert all(int(a.last, 16) < int(b.first, 16) for a, b in pairwise(chips))
    recorded = [HostFacts.load(p) for p in (Path(__file__).parent / "hosts").glob("*.json")]
    cards = [d for f in recorded for d in f.value("driver.devices", list) or [] if d["kind"] == "gpu"]
    assert cards
    assert all(load_drivers().chip_of(d["device"]) for d in cards)


@pytest.mark.parametrize(("floor", "branch"), [("", 580), ("525.60.13", 580), ("580", 580), ("580.65", 580)])
def test_the_default_branch_serves_every_floor_it_reaches(floor: str, branch: int) -> None:
    found = load_drivers().branch_for(floor)
    assert found is not None
    assert found.branch == branch


# ---- the question ---------------------------------------------------------------------------------------


@dataclass
class Terminal:
    answer: str = ""
    tty: bool = True

    def isatty(self) -> bool:
        return self.tty

    def readline(self) -> str:
        return self.answer


@pytest.mark.parametrize(
    ("stdin", "yes", "agreed"),
    [
        (Terminal("y\n"), False, True),
        (Terminal("YES\n"), False, True),
        (Terminal("\n"), False, False),
        (Terminal("no\n"), False, False),
        (Terminal("y\n", tty=False), False, False),
        (None, False, False),
        (None, True, True),
    ],
)
def test_only_a_yes_reboots(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: Terminal | None,
    yes: bool,
    agreed: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    assert confirmer(yes)("gpu01", "reboot into driver 580.1") is agreed
    out, err = capsys.readouterr()
    assert out == "", "standard output belongs to the JSON document"
    assert ("gpu01: reboot into driver 580.1? [y/N]" in err) is bool(stdin and stdin.tty and not yes)


# ---- the proof ------------------------------------------------------------------------------------------


def job(look: list[HostFacts]) -> steps.DriverJob:
    def again() -> HostFacts:
        return look.pop(0) if len(look) > 1 else look[0]

    shell: Any = FakeHost()
    floors = Floors("vllm", "0.33.0", driver="580")
    return steps.DriverJob(shell, look[0], floors, lambda *_: True, lambda _: None, again, "580.159.04")


def test_a_driver_that_nobody_could_see_answering_is_not_proven() -> None:
    blind = HostFacts("gpu01", 0.0, {})
    with pytest.raises(ChangeFailed, match="nobody could see whether it answers") as e:
        job([blind]).prove(deadline=0.0)
    assert e.value.hint == "invoke facts --host gpu01"


def test_the_proof_waits_for_a_driver_that_is_still_starting() -> None:
    silent = {"driver.source": "none", "driver.nvml_error": "Unknown Error", "driver.nvml_error_code": 999}
    starting = facts_of({"host": "h200x2-580", "facts": silent})
    up = facts_of({"host": "h200x2-580"})
    assert job([starting, starting, up]).prove(deadline=60.0) is up
    with pytest.raises(ChangeFailed, match="driver-not-answering"):
        job([starting]).prove(deadline=0.0)


def test_the_proof_does_not_wait_for_what_will_not_come() -> None:
    with pytest.raises(ChangeFailed, match="driver-conflicting-module"):
        job([facts_of({"host": "rtx4090x2-nouveau"})]).prove(deadline=60.0)
