"""Apt on a host: what it knows (read only), what an install would do, and the install itself."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inventory.errors import ChangeFailed
from provision.programs import program
from provision.shell import Result, Shell

__all__ = ["AptState", "Simulation", "apt_get", "look", "refresh", "simulate", "upstream", "way_out"]

LOG = "/var/log/eyas-apt.log"
#: Below /run, so that the boot that it asks for also removes it.
MARK = "/run/eyas/driver-needs-reboot"
_LOCK_WAIT_S = 300
_OPTIONS = (
    "-q",
    "-y",
    "-o",
    f"DPkg::Lock::Timeout={_LOCK_WAIT_S}",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
)

#: What apt and dpkg say (their own English words) -> the way out. The first that matches is it.
_WAYS_OUT = (
    (
        r"Could not get lock|is held by process|lock-frontend",
        "another package manager is at work: wait for it (ps -ef | grep -E 'apt|dpkg'), then run again",
    ),
    (r"No space left on device|enough free space", "make room (df -h / /usr /boot /var), then run again"),
    (r"[Hh]eld packages", "apt-mark showhold   # sudo apt-mark unhold NAME releases what is in the way"),
    (r"has no installation candidate|Unable to locate package", "sudo add-apt-repository -y restricted"),
    (
        r"Failed to fetch|Unable to fetch|Could not (resolve|connect)|Hash Sum mismatch",
        "the package source can't be reached or is stale: see /etc/apt/sources.list.d, then run again",
    ),
    (r"Bad return status for module build|Error! .*dkms", "cat /var/lib/dkms/nvidia/*/build/make.log"),
    (r"unmet dependencies|held broken", "sudo apt-get -f install   # shows what does not fit together"),
    (
        r"dpkg was interrupted|dpkg --configure|sub-process .*dpkg",
        "run the same command again: it repairs dpkg first",
    ),
)


@dataclass(frozen=True)
class AptState:
    """What apt knows. ``fresh``: the lists were just fetched; ``free``: bytes by mount point.

    ``interrupted``: what dpkg left undone. ``marked``: an install by eyas waits for a reboot.
    """

    candidates: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    interrupted: Sequence[str] = ()
    free: Mapping[str, int] = field(default_factory=dict)
    marked: bool = False
    fresh: bool = False
    update_error: str = ""


@dataclass(frozen=True)
class Simulation:
    """What an install would do. ``error``: apt's own words when it can't; bytes to fetch and to unpack."""

    error: str = ""
    new: Sequence[str] = ()
    upgraded: Sequence[str] = ()
    removed: Sequence[str] = ()
    held: Sequence[str] = ()
    download: int = 0
    unpack: int = 0


def upstream(version: str | None) -> str:
    """``580.159.04`` of ``2:580.159.04-0ubuntu0.24.04.1``; "" when it does not begin with a number."""
    found = re.match(r"(?:\d+:)?(\d[\d.]*)", version or "")
    return found.group(1).rstrip(".") if found else ""


def way_out(text: str) -> str:
    return next((hint for pattern, hint in _WAYS_OUT if re.search(pattern, text)), f"see {LOG} on the host")


def look(shell: Shell, names: Sequence[str], *, update_error: str = "", fresh: bool = False) -> AptState:
    """One read-only round trip."""
    argv = ("sh", "-s", "--", MARK, *names)
    said = shell.run(argv, timeout=60, stdin=program("apt_look.sh")).stdout
    return parse_look(said, update_error=update_error, fresh=fresh)


def parse_look(said: str, *, update_error: str = "", fresh: bool = False) -> AptState:
    parts = dict(re.findall(r"^@@ (\w+)\n((?:(?!@@ ).*\n?)*)", said, re.MULTILINE))
    policy = _policy(parts.get("policy", ""))
    free = re.findall(r"^(\S+)\s+(\d+)$", parts.get("free", ""), re.MULTILINE)
    return AptState(
        candidates={n: c for n, (c, _) in policy.items() if c},
        versions={n: v for n, (_, v) in policy.items()},
        interrupted=tuple(line.strip() for line in parts.get("interrupted", "").splitlines() if line.strip()),
        free={mount: int(size) for mount, size in free},
        marked="yes" in parts.get("mark", ""),
        fresh=fresh,
        update_error=update_error,
    )


def _policy(text: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    out = {}
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        name, _, rest = block.partition(":\n")
        candidate = re.search(r"^  Candidate: (\S+)", rest, re.MULTILINE)
        if candidate:
            best = "" if candidate.group(1) == "(none)" else candidate.group(1)
            out[name] = (best, tuple(re.findall(r"^ (?:\*\*\*|   ) (\S+) -?\d+$", rest, re.MULTILINE)))
    return out


def simulate(shell: Shell, specs: Sequence[str]) -> Simulation:
    """Ask apt what it would do. ``--print-uris`` never acts; ``--assume-no`` does when it sees nothing to ask."""
    argv = (
        *("env", "LC_ALL=C", "apt-get", "install", "-y", "--print-uris", "--ignore-hold"),
        *("-o", "Debug::NoLocking=1", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="),
        *specs,
    )
    got = shell.run(argv, timeout=120, check=False)
    return parse_simulation(got.stdout, got.stderr, got.exit)


def parse_simulation(stdout: str, stderr: str, code: int) -> Simulation:
    def block(title: str) -> tuple[str, ...]:
        found = re.search(rf"^The following {title}.*:\n((?:  .*\n)+)", stdout, re.MULTILINE)
        return tuple(w for w in (found.group(1).split() if found else ()) if not w.startswith("("))

    errors = [line for line in stderr.splitlines() if line.startswith("E:")]
    reasons = re.findall(r"^ \S+ : .*(?:\n {5,}.*)*", stdout, re.MULTILINE)
    return Simulation(
        error="\n".join([*reasons, *errors]) or f"apt-get exited {code}" if code else "",
        new=block("NEW packages"),
        upgraded=block("packages will be upgraded"),
        removed=block("packages will be REMOVED"),
        held=block("held packages"),
        download=_size(r"Need to get (?:[\d.,]+ ?k?M?G?B/)?([\d.,]+) (\w?)B", stdout),
        unpack=_size(r"operation, ([\d.,]+) (\w?)B of additional", stdout),
    )


def _size(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if not found:
        return 0
    scale = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3}.get(found.group(2), 1)
    return int(float(found.group(1).replace(",", "")) * scale)


def refresh(shell: Shell) -> str:
    """Fetch the package lists. Returns apt's words when a source failed: others may have what we need."""
    try:
        apt_get(shell, "update", timeout=600)
    except ChangeFailed as e:
        return e.message
    return ""


def apt_get(
    shell: Shell, *words: str, timeout: float, on_line: Callable[[str], None] | None = None
) -> Result:
    """Run apt-get to its end, logged on the host. ChangeFailed has apt's last words and the way out."""
    return run_logged(shell, ("apt-get", *_OPTIONS, *words), timeout=timeout, on_line=on_line)


def run_logged(
    shell: Shell, argv: tuple[str, ...], *, timeout: float, on_line: Callable[[str], None] | None = None
) -> Result:
    got = shell.run(
        ("bash", "-c", program("apt_run.sh").decode(), "bash", LOG, *argv),
        timeout=timeout,
        check=False,
        on_line=on_line,
    )
    if not got.ok:
        why = f"no end within {timeout:.0f} s" if got.exit in {124, 137} else f"exit {got.exit}"
        words = " ".join(w for w in argv if not w.startswith(("-", "DPkg", "Dpkg")))
        raise ChangeFailed(
            f"{words}: {why}\n{_telling(got.stdout)}", hint=way_out(got.stdout), host=shell.host.name
        )
    return got


def _telling(text: str, lines: int = 8) -> str:
    """Apt's own errors, or the last lines where it names none."""
    said = text.strip().splitlines()
    errors = [line for line in said if re.match(r"(E:|dpkg: error|Error!)", line)]
    return "\n".join((errors or said)[-lines:])
