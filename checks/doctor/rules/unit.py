"""The unit: sandbox, folders, disk, time-outs, environment."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose
from checks.doctor.scan import Hit
from checks.outcome import Severity

__all__ = ["RULES"]

_HOMES = ("/home", "/root", "/run/user")


def _sandbox(case: Case) -> Iterator[Candidate]:
    """Permission or existence of a path that the unit hides; and read-only places."""
    protect = case.unit.get("ProtectHome").lower() if case.unit else ""
    said = case.said(r"protecthome\W{1,3}(yes|true|tmpfs|read-only)")
    protect = protect or (said[1] if said else "")
    hidden = protect in {"yes", "true", "on", "1", "tmpfs", "read-only"}
    for hit in (
        case.all("permission") + case.all("file.missing") + case.all("repo-missing") + case.all("readonly")
    ):
        path = _path(hit)
        if hidden and path.startswith(_HOMES) and not (protect == "read-only" and hit.sig.mark != "readonly"):
            values = {"path": path, "protect": protect}
            yield Candidate("service-sandbox-home", 3, case.evidence(hit), values, hit.line, hit.start)
    if hidden and case.unit and not case.log:
        used = re.search(
            r"(?:/home|/root|/run/user)/[\w./-]+",
            " ".join(
                case.unit.all("ExecStart") + case.unit.all("Environment") + case.unit.all("WorkingDirectory")
            ),
        )
        if used:
            why = case.fact("unit:ProtectHome", f"{protect}, and {used[0]} is used")
            yield Candidate("service-sandbox-home", 2, (why,), {"path": used[0], "protect": protect})


def _path(hit: Hit) -> str:
    return next(
        (v for k, v in sorted(hit.groups.items()) if k.startswith(("path", "repo")) and v.startswith("/")), ""
    )


def _readonly(case: Case) -> Iterator[Candidate]:
    for hit in case.all("readonly"):
        path = _path(hit)
        yield Candidate(
            "service-sandbox-readonly",
            3,
            case.evidence(hit),
            {"path": path} if path else {},
            hit.line,
            hit.start,
        )


def _permission(case: Case) -> Iterator[Candidate]:
    """A folder of another user. Device nodes and sockets are another matter."""
    for hit in case.all("permission"):
        path = _path(hit)
        if path.startswith(("/dev/nvidia", "/proc", "/sys")):
            yield Candidate("gpu-not-visible", 2, case.evidence(hit), {}, hit.line, hit.start)
        elif re.search(r"ssh|sudo|publickey|git@|matplotlib|fontconfig", hit.text.lower()):
            continue
        elif path.startswith("/dev/shm"):  # noqa: S108 - a path of a log
            yield Candidate("shm-too-small", 2, case.evidence(hit), {}, hit.line, hit.start)
        else:
            near = "\n".join(c.text for c in hit.before[-30:]).lower() + hit.text.lower()
            soft = re.search(r"error saving model info cache|usage_lib|usage stats", near) or case.has(
                "ready"
            )
            yield Candidate(
                "cache-not-writable",
                1 if soft else 3 if path else 2,
                case.evidence(hit),
                {"path": path} if path else {},
                hit.line,
                hit.start,
                Severity.WARNING if soft else None,
            )


def _disk(case: Case) -> Iterator[Candidate]:
    for hit in case.all("nospace"):
        near = "\n".join(c.text for c in (*hit.before[-25:], *hit.after[:3])).lower()
        shm = prose("shm_frame").search(hit.text.lower() + near)
        cause = "shm-too-small" if shm else "disk-full"
        yield Candidate(cause, 3, case.evidence(hit), {}, hit.line, hit.start)
    for hit in case.all("disk-warn"):
        values = dict(hit.groups)
        if {"need_mb", "free_mb"} <= set(values):
            values["short_mb"] = f"{float(values['need_mb']) - float(values['free_mb']):.0f}"
        yield Candidate("disk-full", 3, case.evidence(hit), values, hit.line, hit.start)
    disks = case.known("disks")
    for disk in disks if isinstance(disks, list) else ():
        if isinstance(disk, dict) and isinstance(disk.get("free"), int) and 0 <= disk["free"] < 300 * 2**20:
            why = case.fact("disks", f"{disk.get('path')}: {disk['free'] >> 20} MiB free")
            yield Candidate("disk-full", 2, (why,))


def _shm_probe(case: Case) -> Iterator[Candidate]:
    free, total = case.known("shm.free"), case.known("shm.total")
    if isinstance(free, int) and isinstance(total, int) and free < 64 * 2**20 and case.tp > 1:
        why = case.fact("shm", f"{free >> 20} of {total >> 20} MiB free")
        yield Candidate("shm-too-small", 2, (why,))


def _timeouts(case: Case) -> Iterator[Candidate]:
    """Ended by the supervisor while loading, or by a supervisor that never waited."""
    for hit in case.all("ready.timeout"):
        seconds = _seconds(hit)
        values = {"timeout_s": f"{seconds:g}"} if seconds is not None else {}
        wrong = (seconds is not None and seconds < 20) or case.said(r"timeout\W{1,5}0\b")
        yield Candidate(
            "service-ready-timeout-config", 3 if wrong else 2, case.evidence(hit), values, hit.line, hit.start
        )
    limit = case.unit.seconds("TimeoutStartSec") if case.unit else None
    for hit in case.all("start-timeout"):
        waited = re.search(r"Waited (\d+)s", hit.text)
        now = float(waited[1]) if waited else limit
        values = {"timeout_s": f"{now:g}", "timeout_next": f"{max(1800, int(now * 4))}"} if now else {}
        yield Candidate("service-start-timeout", 3, case.evidence(hit), values, hit.line, hit.start)
        if "probe" in hit.text.lower():
            yield Candidate("service-ready-timeout-config", 1, case.evidence(hit), {}, hit.line, hit.start)


def _seconds(hit: Hit) -> float | None:
    for key, unit in (("timeout_s", "unit"), ("s2", ""), ("s3", "unit2")):
        if hit.groups.get(key):
            scale = {"ms": 0.001, "m": 60.0}.get(hit.groups.get(unit, ""), 1.0)
            return float(hit.groups[key]) * scale
    return None


def _env_path(case: Case) -> Iterator[Candidate]:
    """A tool the service does not find: because it has no PATH, or because it is not there."""
    hit = case.first("tool.missing") or case.first("exec.203") or case.first("nvcc") or case.first("cuda-lib")
    if hit is None:
        return
    tool = next((v for k, v in hit.groups.items() if k.startswith("tool")), "") or (
        "nvcc" if hit.sig.id == "nvcc" else ""
    )
    named = hit.sig.mark in {"tool.missing", "exec.203"}
    values = _bin(case, tool)
    bare = case.unit is not None and not _has_path(case)
    shell = case.said(prose("works_in_shell"))
    installed = case.known("cuda.nvcc") or case.said(prose("toolkit_there"))
    service = case.has("start-systemd", "symptom.unit") or bool(case.said(r"systemd|unit|service"))
    if shell or (bare and (named or installed or case.unit)):
        yield Candidate("service-env-path", 3, case.evidence(hit), values, hit.line, hit.start)
    elif named or (service and installed):
        yield Candidate(
            "service-env-path", 3 if service else 2, case.evidence(hit), values, hit.line, hit.start
        )
    elif service:
        yield Candidate("service-env-path", 1, case.evidence(hit), values, hit.line, hit.start)


def _has_path(case: Case) -> bool:
    env = case.unit.environment if case.unit else {}
    return "PATH" in env or "CUDA_HOME" in env or bool(case.unit and case.unit.all("EnvironmentFile"))


def _bin(case: Case, tool: str) -> dict[str, str]:
    """The folder of the engine's own binaries, from ExecStart."""
    found = re.search(r"(/[\w./-]+/bin)/", " ".join(case.unit.all("ExecStart")) if case.unit else "")
    return {"tool": tool or "nvcc", "bin": found[1]} if found else {}


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "sandbox": _sandbox,
    "read-only": _readonly,
    "permission": _permission,
    "disk": _disk,
    "shm": _shm_probe,
    "timeouts": _timeouts,
    "service-env": _env_path,
}
