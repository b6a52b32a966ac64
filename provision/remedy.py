"""What `--fix` may change for a finding: a value of the deployment's file, or a mend of the host's own parts.

Never a driver, a reboot, a package or somebody else's process: for these a finding's commands are printed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from checks.doctor.catalogue import catalogue
from checks.facts import HostFacts
from checks.outcome import Finding
from inventory.model import Deployment, Draft
from inventory.yamlfile import Loc
from provision import layout
from provision.looking import Seen
from provision.shell import Shell

__all__ = ["Remedy", "host_remedy", "remedy_for"]

_SET_ASIDE = f"{layout.STATE}/set-aside"


@dataclass(frozen=True)
class Remedy:
    """One safe way out. Either ``loc`` and its value, or ``do`` and ``undo``: argv run as root.

    ``host_only``: it touches nothing that is served, so that no restart belongs to it.
    """

    title: str
    loc: Loc = ()
    value: Any = None
    do: tuple[tuple[str, ...], ...] = ()
    undo: tuple[tuple[str, ...], ...] = ()
    host_only: bool = False

    def apply(self, shell: Shell) -> None:
        for argv in self.do:
            shell.run(argv, timeout=60)

    def revert(self, shell: Shell) -> None:
        for argv in self.undo:
            shell.run(argv, timeout=60, check=False)


def host_remedy(f: Finding, facts: HostFacts) -> Remedy | None:
    """A remedy that no deployment has to be known for, None when there is none."""
    return _holds(facts) if _kind(f) == "holds" else None


def _kind(f: Finding) -> str:
    code = catalogue().by_slug.get(f.slug)
    return code.safe_fix if code else ""


def remedy_for(f: Finding, d: Deployment, seen: Seen | None, facts: HostFacts) -> Remedy | None:
    """The first safe remedy of a finding, None when there is none."""
    match _kind(f):
        case "deployment":
            return next(_edits(f, d, facts), None)
        case "unit":
            return _drop_ins(seen, facts)
        case "permissions":
            return _owner(f, d)
        case "stale-shm":
            return _shm()
        case "weights":
            return _weights(seen)
    return host_remedy(f, facts)


# ---- a value of the deployment


def _edits(f: Finding, d: Deployment, facts: HostFacts) -> Iterator[Remedy]:
    """Fixes that name a key and a value it can take, in the finding's order."""
    for fix in f.fix:
        key, text = fix.change, fix.value
        if found := re.fullmatch(r"port: (\d+)", text):
            key, text = "port", found[1]
        loc = _place(key)
        value = _value(d, loc, text) if loc else None
        if value is None or value == _now(d, loc):
            continue
        if loc == ("port",):
            value = _free_port(int(value), facts)
        yield Remedy(f"{'.'.join(map(str, loc))}: {_now(d, loc)} -> {value}", loc, value)


def _place(key: str) -> Loc:
    """The key of a deployment that a fix means, () for none."""
    key = key.removeprefix("draft.")
    if key in {"num_speculative_tokens", "max_batch_size", "topk"}:
        return ("draft", key)
    return (key,) if key in Deployment.model_fields and key not in {"target", "draft", "env", "name"} else ()


def _value(d: Deployment, loc: Loc, text: str) -> Any:
    """The text as the key's own kind, None when it is advice and no value."""
    whole: Deployment | Draft = d.draft if len(loc) > 1 else d
    for value in (_number(text), {"true": True, "false": False}.get(text), _word(text)):
        if value is None:
            continue
        try:
            type(whole).model_validate({**whole.model_dump(), str(loc[-1]): value}, strict=True)
        except ValueError:
            continue
        return value
    return None


def _number(text: str) -> float | int | None:
    if re.fullmatch(r"\d{1,9}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[01]?\.\d{1,4}|1\.0", text) else None


def _word(text: str) -> str | None:
    return text if re.fullmatch(r"auto|float16|bfloat16|float32|fp8\w{0,6}|half", text) else None


def _now(d: Deployment, loc: Loc) -> Any:
    return getattr(d.draft if len(loc) > 1 else d, str(loc[-1]), None)


def _free_port(wanted: int, facts: HostFacts) -> int:
    taken = {p.get("port") for p in facts.value("ports", list) or [] if isinstance(p, dict)}
    return next(n for n in range(wanted, 65536) if n not in taken)


# ---- the host's own parts


def _drop_ins(seen: Seen | None, facts: HostFacts) -> Remedy | None:
    """Drop-ins beside our unit: set aside, so that the unit is again what the release says."""
    unit = (facts.value("eyas.units", dict) or {}).get(seen.unit if seen else "") or {}
    files = [p for p in unit.get("drop_ins") or [] if p.startswith("/etc/systemd/system/")]
    if seen is None or not files:
        return None
    aside = f"{_SET_ASIDE}/{seen.unit}"
    reload = ("systemctl", "daemon-reload")
    home = files[0].rpartition("/")[0]
    names = [f"{aside}/{p.rpartition('/')[2]}" for p in files]
    return Remedy(
        f"set aside what was added to the unit by hand: {', '.join(files)} (kept in {aside})",
        do=(("mkdir", "-p", aside), ("mv", "-f", "--", *files, aside), reload),
        undo=(("mkdir", "-p", home), ("mv", "-f", "--", *names, home), reload),
    )


def _owner(f: Finding, d: Deployment) -> Remedy | None:
    """A folder of the service that somebody else owns. Paths outside its own folders are not touched."""
    unit = layout.unit_name(d.name)
    ours = (f"/var/cache/{unit}", f"/var/lib/{unit}")
    said = " ".join([*(e.text for e in f.evidence), *(x.value for x in f.fix)])
    found = next((p for p in ours if re.search(rf"{re.escape(p)}(?![\w.-])", said)), "")
    if not found:
        return None
    owner = f"{layout.USER}:{layout.USER}"
    return Remedy(f"give {found} back to {layout.USER}", do=(("chown", "-R", owner, "--", found),))


def _shm() -> Remedy:
    """Segments of ours that no process maps any more, one by one."""
    named = "-name 'vllm_dist_*' -o -name 'psm_*' -o -name 'nccl-*'"
    drop = "-exec sh -c 'grep -qsF -- \"$1\" /proc/[0-9]*/maps || rm -f -- \"$1\"' sh {} ';'"
    script = f"find /dev/shm -maxdepth 1 -type f -user {layout.USER} '(' {named} ')' {drop}"
    return Remedy("remove shared memory that killed runs left", do=(("sh", "-c", script),))


def _holds(facts: HostFacts) -> Remedy | None:
    """The driver's installed packages that nobody holds yet; only these are released again."""
    held = set(facts.value("driver.holds", list) or [])
    names = sorted(set(facts.value("driver.packages", dict) or {}) - held)
    if not names:
        return None
    return Remedy(
        f"hold {', '.join(names)}",
        do=(("apt-mark", "hold", *names),),
        undo=(("apt-mark", "unhold", *names),),
        host_only=True,
    )


def _weights(seen: Seen | None) -> Remedy | None:
    """No longer verified: every file is hashed again, and only wrong ones are fetched."""
    told = (seen.release.get("weights") if seen else None) or {}
    paths = [
        w["path"] for w in told.values() if str(w.get("path", "")).startswith(f"{layout.STATE}/weights/")
    ]
    if not paths:
        return None
    move = 'for p; do if [ -d "$p" ]; then rm -rf "$p.partial"; mv -T "$p" "$p.partial"; fi; done'
    back = 'for p; do if [ -d "$p.partial" ] && ! [ -e "$p" ]; then mv -T "$p.partial" "$p"; fi; done'
    return Remedy(
        "check every file of the weights again and fetch the wrong ones",
        do=(("sh", "-c", move, "sh", *paths),),
        undo=(("sh", "-c", back, "sh", *paths),),
    )
