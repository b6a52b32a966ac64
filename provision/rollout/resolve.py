"""One host's part of the plan, from facts and wish: which release, what must come, what is served now."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from checks.facts import HostFacts
from checks.outcome import Severity
from checks.preconditions import run_preconditions, verdict
from inventory.errors import CheckRefused, EyasError, HostUnreachable
from inventory.model import Deployment, Host
from provision import layout
from provision.converge import Options, Say, look, plan_changes
from provision.localfile import replace_text
from provision.proof import baseline_key
from provision.rollout.plan import Member, host_words
from provision.rollout.record import rollouts_dir
from provision.shell import Shell
from provision.want import Want, want_for

__all__ = ["check_member", "failed_member", "member_of", "one_commit", "resolve_member"]


def resolve_member(shell: Shell, d: Deployment, options: Options, say: Say) -> Member:
    """Look and decide; changes nothing. A host that a check refuses is a member in state ``refused``."""
    say("looking")
    facts = look(shell, d, options)
    try:
        want = want_for(shell.host, d, facts, options.sources, say)
        check_member(facts, want, options)
    except CheckRefused as e:
        return failed_member(shell.host, d, e)
    return member_of(shell.host, d, facts, want, options, say)


def member_of(host: Host, d: Deployment, facts: HostFacts, want: Want, options: Options, say: Say) -> Member:
    changes = plan_changes(want, facts, options, say)
    current = (facts.value("eyas.current", dict) or {}).get(d.name)
    moves = any(c.disruptive or c.title.startswith("proof") for c in changes)
    disk = want.host.disk
    releases = {r["id"]: r for r in facts.value("eyas.releases", list) or []}
    return Member(
        host=host_words(host),
        deployment=_pinned(d, want),
        state="pending" if moves else "prepare" if changes else "same",
        want=want.release.id,
        former=current,
        baseline=current if releases.get(current, {}).get("proven") else None,
        timeout_start_s=want.release.timeout_start_s,
        baseline_key=baseline_key(want),
        changes=tuple(c.title for c in changes),
        weight_bytes=sum(disk[layout.STATE].values()),
        wheel_bytes=disk[layout.ROOT].get("wheels", 0),
        model_bytes=want.host.weights_bytes,
        notes=want.notes,
    )


def _pinned(d: Deployment, want: Want) -> dict[str, Any]:
    """The deployment with its branches as commits and its lock as a kept copy: a resume means the same."""
    words: dict[str, Any] = d.model_dump(mode="json")
    words["lock"] = str(_kept_lock(want))
    if d.target.repo:
        words["target"]["revision"] = want.manifests["target"].commit
    if d.draft.model and d.draft.model.repo:
        words["draft"]["model"]["revision"] = want.manifests["draft"].commit
    return words


def one_commit(members: Iterable[Member]) -> None:
    """Raise CheckRefused when a branch has moved since some of the hosts took it: they would differ."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for m in members:
        if m.want:
            name, words = str(m.deployment.get("name")), m.deployment
            for ref in (words.get("target"), (words.get("draft") or {}).get("model")):
                if ref and ref.get("repo"):
                    found.setdefault((name, ref["repo"]), {}).setdefault(ref["revision"], []).append(m.name)
    for (name, repo), commits in found.items():
        if len(commits) > 1:
            told = "; ".join(f"{', '.join(hosts)}: {commit[:12]}" for commit, hosts in commits.items())
            raise CheckRefused(
                f"the hosts would serve different commits of {repo}, whose branch has moved: {told}",
                hint=f"invoke pin --deployment {name}   then the same command takes all to that commit",
            )


def _kept_lock(want: Want) -> Path:
    """The wheel lock under its own hash, where nobody edits it during a run."""
    path = rollouts_dir() / "locks" / want.lock.id[:16] / f"{want.lock.name}.txt"
    if not path.exists():
        replace_text(path, want.lock.text, hint="the rollout keeps its plan there")
    return path


def check_member(facts: HostFacts, want: Want, options: Options) -> None:
    errors = list(verdict(run_preconditions(facts, want.host)).errors)
    proven = {r["id"] for r in facts.value("eyas.releases", list) or [] if r.get("proven")}
    if options.preflight and not errors and want.release.id not in proven:
        findings, _ = options.preflight(want, facts, options.sources)
        errors = [f for f in findings if f.severity is Severity.ERROR]
    if errors:
        first = errors[0]
        hint = next((f.command or f.change for f in first.fix), "")
        raise CheckRefused(f"{first.code} {first.slug}: {first.cause}", hint=hint, host=facts.host)


def failed_member(host: Host, d: Deployment, e: EyasError) -> Member:
    state = "unreachable" if isinstance(e, HostUnreachable) else "refused"
    words = d.model_dump(mode="json")
    return Member(host_words(host), words, state, why=e.message, hint=e.hint)
