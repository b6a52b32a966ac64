"""`--install-driver`: from what is left to do to changes, with a reboot in between, and the proof."""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

from packaging.version import Version

from checks.facts import HostFacts
from checks.outcome import Finding, Outcome, Status
from checks.preconditions import Floors, Want, run_preconditions, verdict
from checks.preconditions.fit import floors_of
from inventory.catalogue import load_catalogue
from inventory.errors import ChangeFailed
from inventory.hardware import Drivers, load_drivers
from inventory.model import Deployment
from inventory.resolve import resolve_version
from provision import apt
from provision.change import Change
from provision.drivergoal import Goal, choose
from provision.drivertodo import Todo, decide, is_driver_package, refuse_simulation, specs_for
from provision.reboot import reboot
from provision.shell import Shell

__all__ = ["DriverJob", "about_driver", "driver_floors", "plan_driver"]

KEEP_FILE = "/etc/apt/apt.conf.d/52eyas-nvidia-driver"
_INSTALL_S = 3600
#: NVSwitch boxes take this long until the fabric is up; cards alone some seconds.
SETTLE_S = 240.0
#: What needs some time after a boot: waiting may help.
_PASSING = {"driver-fabric-manager", "driver-not-answering"}
#: Rules that must have looked before a driver counts as there.
_MUST_SEE = {"driver-fabric-manager", "driver-too-old", "gpu-not-visible"}
Confirm = Callable[[str, str], bool]
Say = Callable[[str], None]


def plan_driver(todo: Todo, drivers: Drivers, confirm: Confirm, say: Say) -> list[Change]:
    """The changes, in order; an empty list means that the driver is there, held, and loaded."""
    service = drivers.packages.fabric_service
    changes = []
    if todo.repair:
        changes.append(Change("finish the package installation that was interrupted", _repair))
    changes += [Change(f"keep {m} from loading", partial(_keep_out, module=m)) for m in todo.keep_out]
    if todo.install:
        title = f"install driver {todo.version}: {', '.join(n.split('=')[0] for n in todo.install)}"
        changes.append(
            Change(title, lambda s: _install(s, todo, say), diff="\n".join([*todo.why, *todo.install]))
        )
    if todo.hold:
        title = f"hold driver {todo.version} and keep unattended upgrades off it"
        changes.append(Change(title, lambda s: _hold(s, todo.version)))
    if todo.fabric_service:
        changes.append(Change(f"start {service}", lambda s: _start(s, service, now=not todo.reboot)))
    if todo.reboot:
        stops = f" (ends: {', '.join(todo.stops)})" if todo.stops else ""
        title = f"reboot into driver {todo.version}{stops}"
        changes.append(Change(title, lambda s: _reboot(s, todo, title, confirm, say), disruptive=True))
    return changes


def _repair(shell: Shell) -> None:
    apt.run_logged(
        shell, ("dpkg", "--configure", "-a", "--force-confdef", "--force-confold"), timeout=_INSTALL_S
    )
    apt.apt_get(shell, "-f", "install", timeout=_INSTALL_S)


def _keep_out(shell: Shell, module: str) -> None:
    text = f"# Written by eyas: NVIDIA's own module drives the cards.\nblacklist {module}\n"
    shell.write(f"/etc/modprobe.d/eyas-{module}.conf", text.encode())
    script = "command -v update-initramfs > /dev/null || exit 0; exec update-initramfs -u"
    apt.run_logged(shell, ("sh", "-c", script), timeout=900)


def _install(shell: Shell, todo: Todo, say: Say) -> None:
    """The mark comes first: an install cut short anywhere must end in a reboot all the same."""
    if todo.reboot:
        shell.write(apt.MARK, b"")
    if todo.unhold:
        shell.run(("apt-mark", "unhold", *todo.unhold), timeout=60)
    apt.apt_get(shell, "install", *todo.install, timeout=_INSTALL_S, on_line=lambda line: say(f"apt: {line}"))
    build = 'command -v dkms > /dev/null || exit 0; exec dkms autoinstall -k "$(uname -r)"'
    apt.run_logged(shell, ("sh", "-c", build), timeout=_INSTALL_S)
    _demand_module(shell, todo.version)


def _demand_module(shell: Shell, version: str) -> None:
    """A reboot without a module for this kernel would leave the host with no cards at all."""
    got = shell.run(("modinfo", "-F", "version", "nvidia"), timeout=30, check=False)
    found = got.stdout.strip()
    if found != version:
        raise ChangeFailed(
            f"driver {version} is installed, but its module for the running kernel is "
            f"{found or 'missing'}; the host was not rebooted",
            hint="cat /var/lib/dkms/nvidia/*/build/make.log; are linux-headers-$(uname -r) installed?",
            host=shell.host.name,
        )


def _hold(shell: Shell, version: str) -> None:
    """The list for unattended upgrades first: it is also what tells our holds from somebody else's."""
    form = "${db:Status-Status} ${Package}\\n"
    said = shell.run(("dpkg-query", "-W", "-f", form), timeout=60).stdout.splitlines()
    names = [n for s, _, n in (line.partition(" ") for line in said) if s != "not-installed"]
    mine = sorted({n for n in names if is_driver_package(n, version)})
    lines = "".join(f'  "{n}$";\n' for n in mine)
    text = (
        "// Written by eyas: a driver replaced under a running engine breaks it.\n"
        f"Unattended-Upgrade::Package-Blacklist {{\n{lines}}};\n"
    )
    shell.write(KEEP_FILE, text.encode())
    if mine:
        shell.run(("apt-mark", "hold", *mine), timeout=60)


def _start(shell: Shell, service: str, *, now: bool) -> None:
    shell.run(("systemctl", "enable", *(("--now",) if now else ()), service), timeout=120)


def _reboot(shell: Shell, todo: Todo, title: str, confirm: Confirm, say: Say) -> None:
    if not confirm(shell.host.name, title):
        raise ChangeFailed(
            f"driver {todo.version} is installed, the reboot is pending",
            hint="run the same command again with --yes",
            host=shell.host.name,
        )
    say("waiting for it to come back (minutes on a large server)")
    reboot(shell)


def driver_floors(d: Deployment, facts: HostFacts) -> Floors:
    """What the deployment's engine needs; for ``auto`` the newest release that these cards run."""
    found = resolve_version(
        load_catalogue(),
        d.engine,
        d.engine_version,
        driver=None,
        glibc=facts.value("os.glibc", str),
        python=".".join((facts.value("python.version", str) or "").split(".")[:2]) or None,
        compute_capability=facts.value("gpus.0.cc", str),
        device=d.device,
    )
    return floors_of(load_catalogue().release(d.engine, found.version), d.device)


@dataclass
class DriverJob:
    """The driver of one host: plan, then (after the changes) proof. ``look``: probe the host again."""

    shell: Shell
    facts: HostFacts
    floors: Floors
    confirm: Confirm
    say: Say
    look: Callable[[], HostFacts]
    version: str = ""

    def plan(self, *, fetch: bool = False) -> list[Change]:
        """Changes for the host as it is; with ``fetch`` the package lists are fetched first where they count.

        CheckRefused, with the way out, when the driver can't be put in place here.
        """
        drivers = load_drivers()
        goal = choose(self.facts, self.floors.driver, drivers)
        if goal is None:
            return []
        state = self._apt(goal, fetch=fetch and bool(goal.lacks))
        specs = specs_for(self.facts, self.floors.driver, goal, state)
        todo = decide(self.facts, goal, specs, state)
        if specs and not state.interrupted and all("=" in s or s in state.candidates for s in specs):
            spare = drivers.packages.initramfs_mib
            refuse_simulation(self.facts, goal, apt.simulate(self.shell, specs), state, spare)
        self.version = todo.version
        return plan_driver(todo, drivers, self.confirm, self.say)

    def _apt(self, goal: Goal, *, fetch: bool) -> apt.AptState:
        error = ""
        if fetch:
            self.say("fetching the package lists")
            error = apt.refresh(self.shell)
        return apt.look(self.shell, goal.names, update_error=error, fresh=fetch)

    def foreseen(self) -> HostFacts:
        """The facts as they will be with the driver that is planned: versions only, the cards stay unread."""
        tree = deepcopy(self.facts.tree)
        tree["driver"]["module_version"] = max(self.version, self.floors.driver, key=Version)
        return replace(self.facts, tree=tree)

    def prove(self, *, deadline: float = SETTLE_S) -> HostFacts:
        """Probe until the driver answers. ChangeFailed with the rules' own finding when it does not."""
        end = time.monotonic() + deadline
        while True:
            facts = self.look()
            outcomes = run_preconditions(facts, Want(floors=self.floors))
            outcomes = [o for o in outcomes if about_driver(o.check)]
            wrong = verdict(outcomes).errors
            unseen = [o for o in outcomes if o.check in _MUST_SEE and o.status is Status.UNKNOWN]
            if not wrong and not unseen:
                return facts
            if time.monotonic() > end or not {f.slug for f in wrong} <= _PASSING:
                raise self._unproven(wrong, unseen)
            time.sleep(2)

    def _unproven(self, wrong: Sequence[Finding], unseen: Sequence[Outcome]) -> ChangeFailed:
        host = self.shell.host.name
        if wrong:
            fix = wrong[0].fix[0]
            why, hint = f"{wrong[0].slug}: {wrong[0].cause}", fix.command or fix.change
        else:
            why = f"nobody could see whether it answers ({unseen[0].why})"
            hint = f"invoke facts --host {host}"
        return ChangeFailed(f"driver {self.version} is installed, but {why}", hint=hint, host=host)


def about_driver(slug: str) -> bool:
    """Whether a finding or a check is about the driver, so that installing one may settle it."""
    return slug.startswith("driver-") or slug == "gpu-not-visible"
