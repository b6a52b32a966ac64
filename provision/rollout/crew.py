"""The hosts of a rollout as they are reached: one connection and one lock each, kept for the whole run."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from inventory.errors import ChangeFailed, EyasError, HostUnreachable, LockHeld
from inventory.model import Host
from provision import layout, service
from provision.converge import Options as ConvergeOptions
from provision.converge import look, plan_changes
from provision.hostlock import host_lock
from provision.programs import program
from provision.proof import read_proof, record_proof
from provision.rollout.distribute import Distribution
from provision.rollout.gate import Tolerance, Verdict, better_of, compare
from provision.rollout.hooks import RouterHook, run_hook
from provision.rollout.plan import Member, Options
from provision.shell import Session, Shell
from provision.want import want_for

__all__ = ["HostCrew"]

Say = Callable[[str, str], None]
Resolver = Callable[[Shell, Member, Callable[[str], None]], Member]
_HEALTH_S = 200
#: For 16 tokens of a host that has just become ready and that nobody else uses yet.
_ANSWER_S = 30


@dataclass
class _Hand:
    """One host: its connection, its lock, and what closes both."""

    shell: Any
    lock: Session | None = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class HostCrew:
    """`loop.Crew` over SSH. Leaving the block gives every lock back and closes every connection."""

    def __init__(
        self, connect: Callable[[Host], Any], what: str, options: Options, converge: ConvergeOptions, say: Say
    ) -> None:
        self.resolver: Resolver = _nobody
        self.connect, self.what, self.options = connect, what, options
        self.converge, self.say = converge, say
        front = options.router
        self.router = self._router_of(Host(**front)) if front else None
        self._hands: dict[str, _Hand] = {}
        self._mutex = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._hands):
            self._drop(name)

    # ---- connection and lock

    def shell(self, host: Host) -> Shell:
        """The open connection to this host, made when there is none."""
        with self._mutex:
            hand = self._hands.get(host.name)
        if hand is None:
            made = _Hand(self.connect(host))
            made.stack.callback(made.shell.close)
            with self._mutex:
                hand = self._hands.setdefault(host.name, made)
            if hand is not made:
                made.stack.close()
        shell: Shell = hand.shell
        return shell

    def take(self, host: Host) -> None:
        """Make sure the host's lock is ours. LockHeld: somebody has it, or took it from us."""
        shell = self.shell(host)
        hand = self._hands[host.name]
        if hand.lock is None:
            hand.lock = hand.stack.enter_context(host_lock(hand.shell, self.what, run=self.what))
        elif hand.lock.closed:
            shell.run(("true",), timeout=20, sudo=False)  # HostUnreachable when it is the link that is gone
            raise LockHeld(
                "the lock on this host was taken away", hint="invoke fleet-lock status", host=host.name
            )

    def _drop(self, name: str) -> None:
        with self._mutex:
            hand = self._hands.pop(name, None)
        if hand:
            with contextlib.suppress(OSError, EOFError, EyasError):
                hand.stack.close()

    def _router_of(self, front: Host) -> RouterHook:
        return RouterHook(lambda: self.shell(front), lambda: self._drop(front.name), self.say)

    def back(self, member: Member) -> None:
        host, end = member.as_host(), time.monotonic() + self.options.back_s
        self._drop(host.name)
        while True:
            try:
                self.take(host)
            except (HostUnreachable, LockHeld) as e:
                # The old session's lock lives until the host notices that we are gone.
                if time.monotonic() > end:
                    raise HostUnreachable(
                        f"not back after {self.options.back_s:.0f} s: {e.message}", host=host.name
                    ) from e
                self._drop(host.name)
                time.sleep(2)
            else:
                return

    def note(self, event: str, **words: object) -> None:
        """One line in the rollout's journal."""
        self.converge.journal.write(event, **words)

    @contextlib.contextmanager
    def at(self, member: Member) -> Iterator[Shell]:
        """The host's shell with our lock; a connection that broke is dropped, so that the next one is new."""
        host = member.as_host()
        try:
            self.take(host)
            yield self.shell(host)
        except HostUnreachable as e:
            if e.host in {None, "", host.name}:
                self._drop(host.name)
            raise

    # ---- what the loop asks for

    def resolve(self, member: Member) -> Member:
        with self.at(member) as shell:
            return self.resolver(shell, member, self._for(member))

    def spread(self, members: list[Member], fleet: list[Member]) -> None:
        Distribution(self, members, fleet).run()

    def prepare(self, member: Member, *, until_weights: bool = False) -> None:
        """``until_weights``: stop before the first change that moves weights."""
        if not member.changes:
            return
        with self.at(member) as shell:
            d, say = member.as_deployment(), self._for(member)
            facts = look(shell, d, self.converge)
            want = want_for(shell.host, d, facts, self.converge.sources, say)
            if want.release.id != member.want:
                raise ChangeFailed(
                    f"the plan says release {member.want}, what would be made now is {want.release.id}",
                    hint="something the plan was made from has changed: start a new rollout",
                    host=member.name,
                )
            for change in plan_changes(want, facts, self.converge, say):
                if change.disruptive or change.title.startswith("proof"):
                    continue
                if until_weights and change.title.startswith(("download ", "push ")):
                    return
                self.converge.journal.write(
                    "change", host=member.name, release=member.want, title=change.title
                )
                say(change.title)
                change.apply(shell)

    def ready(self, member: Member) -> None:
        with self.at(member) as shell:
            name = _name(member)
            argv = ("sh", "-c", 'readlink -- "$1"; [ -f "$2" ]', "sh")
            link, file = layout.current_link(name), f"{layout.release_dir(member.want)}/release.json"
            got = shell.run((*argv, link, file), timeout=20, check=False)
            current = got.stdout.strip().rsplit("/", 1)[-1] or None
            if not got.ok:
                raise ChangeFailed(f"release {member.want} is not on the host", host=member.name)
            if current not in {member.former, member.want}:
                raise ChangeFailed(
                    f"it serves {current or 'nothing'} now; in the plan it was {member.former or 'nothing'}",
                    hint="somebody changed it meanwhile: look at invoke audit, then start a new rollout",
                    host=member.name,
                )

    def drain(self, member: Member) -> None:
        if self.router:
            self.router.drain(member.name, self.options.drain_s)
        if self.options.drain:
            self._hook(self.options.drain, member)
        elif not self.router:
            return
        with self.at(member) as shell:
            link = layout.current_link(_name(member))
            argv = (
                "env",
                f"EYAS_CREDENTIALS={layout.credentials_dir(_name(member))}",
                "python3",
                "-sEB",
                "-",
            )
            patience = self.options.drain_s
            got = shell.run(
                (*argv, link, f"{patience:g}"),
                timeout=patience + 60,
                stdin=program("wait_idle.py"),
                check=False,
            )
            if got.exit not in {0, 1}:
                self._for(member)(
                    f"requests in flight could not be counted: {got.stdout.strip() or got.tail(1)}"
                )
            if got.exit == 1:
                raise ChangeFailed(
                    f"requests are still running after {patience:g} s: {got.stdout.strip()}",
                    hint="give --drain-timeout more, or look who still sends to it",
                    host=member.name,
                )

    def restore(self, member: Member) -> None:
        if self.options.restore:
            self._hook(self.options.restore, member)
        if self.router:
            self.router.restore(member.name)

    def _hook(self, command: str, member: Member) -> None:
        port = int(member.deployment.get("port") or 8000)
        run_hook(command, member.as_host(), _name(member), port)

    def serve(self, member: Member, release: str, *, on_line: Callable[[str], None] | None = None) -> None:
        with self.at(member) as shell:
            if release == member.former and release != member.want and _serves(shell, _name(member), release):
                return  # the host itself has put it back
            self._for(member)(f"serving release {release}")
            former = member.former if release == member.want else None
            try:
                service.activate(
                    shell,
                    _name(member),
                    release,
                    member.timeout_start_s,
                    former=former,
                    explain=self.converge.explain,
                    on_line=on_line,
                )
            except ChangeFailed as e:
                why = f"release {release} did not become ready: {e.message}"
                raise ChangeFailed(why, host=member.name, findings=e.findings) from e

    def gate(self, member: Member, release: str, baseline: str | None) -> Verdict:
        with self.at(member) as shell:
            say = self._for(member)
            say("deep health")
            if why := _deep_health(shell, _name(member)):
                return Verdict(reasons=(f"deep health: {why}",))
            say("proof")
            before = read_proof(shell, baseline)
            now = service.prove(shell, _name(member))
            verdict = compare(now, before, self._tolerance)
            if not verdict.green:
                say(f"measuring again: {verdict.text}")
                now = better_of(now, service.prove(shell, _name(member)))
                verdict = compare(now, before, self._tolerance)
            if verdict.green and release == member.want and member.baseline_key:
                method = (member.deployment.get("draft") or {}).get("method", "none")
                record_proof(shell, release, member.baseline_key, now, speculates=method != "none")
            return verdict

    @property
    def _tolerance(self) -> Tolerance:
        o = self.options
        return Tolerance(o.ttft_percent, o.speed_percent, o.acceptance_percent)

    def withdraw(self, member: Member) -> None:
        with self.at(member) as shell, contextlib.suppress(ChangeFailed):
            service.put_back(shell, _name(member), None, member.timeout_start_s, "")

    def _for(self, member: Member) -> Callable[[str], None]:
        return lambda text: self.say(member.name, text)


def _name(member: Member) -> str:
    return str(member.deployment["name"])


def _nobody(shell: Shell, member: Member, say: Callable[[str], None]) -> Member:  # noqa: ARG001
    return member


def _serves(shell: Shell, deployment: str, release: str) -> bool:
    script = '[ "$(readlink "$1")" = "$2" ] && systemctl is-active --quiet "$3.service"'
    words = layout.current_link(deployment), layout.release_dir(release), layout.unit_name(deployment)
    return shell.run(("sh", "-c", script, "sh", *words), timeout=30, check=False).ok


def _deep_health(shell: Shell, deployment: str) -> str:
    """Why the served release is not well, or nothing: its own health program, run now."""
    env = ("env", f"EYAS_CREDENTIALS={layout.credentials_dir(deployment)}")
    path = f"{layout.current_link(deployment)}/healthcheck.py"
    got = shell.run((*env, "python3", "-sEB", path, str(_ANSWER_S)), timeout=_HEALTH_S, check=False)
    try:
        told = json.loads(got.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return f"the health program ended with {got.exit}: {got.tail(3)}"
    return "" if told.get("ok") else str(told.get("why", "it says no"))
