"""Service, files, keys, ports, hub: the unit's sandbox and environment against what failed."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose
from checks.doctor.scan import Hit
from checks.outcome import Severity

__all__ = ["RULES"]

_HOMES = ("/home", "/root", "/run/user")
_HEALTH = re.compile(
    r"^/(?:health\w*|healthz|ready|readyz|livez|ping|metrics|v1/models|get_model_info|server_info)\b"
)


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


def _keys(case: Case) -> Iterator[Candidate]:
    """Who was refused: a client, or a health check."""
    refused = case.all("http.401")
    probe = case.first("probe-401")
    about = case.said(prose("health_check"))
    if refused:
        health = [h for h in refused if _HEALTH.match(h.groups["path"])]
        work = [h for h in refused if not _HEALTH.match(h.groups["path"])]
        served = case.has("http.200")
        if health and (not work or about or probe):
            first = health[0]
            yield Candidate(
                "health-check-unauthorized",
                3,
                case.evidence(first),
                {"path": first.groups["path"]},
                first.line,
                first.start,
            )
        if work:
            soft = Severity.WARNING if served else None
            yield Candidate(
                "api-key-unauthorized",
                3 if not (health and about) else 2,
                case.evidence(work[0]),
                {},
                work[0].line,
                work[0].start,
                soft,
            )
        elif health:
            yield Candidate(
                "api-key-unauthorized", 1, case.evidence(health[0]), {}, health[0].line, health[0].start
            )
    client = case.first("client.401")
    if client and not refused and not case.has("hf-401"):
        cause = "health-check-unauthorized" if about or probe else "api-key-unauthorized"
        yield Candidate(
            cause,
            3 if cause == "api-key-unauthorized" or probe else 2,
            case.evidence(client),
            {},
            client.line,
            client.start,
        )


def _ports(case: Case) -> Iterator[Candidate]:
    """API port or internal port. The internal line may be followed by the same errno."""
    inner = case.all("port-internal")
    for hit in inner:
        port = hit.groups.get("port", hit.groups.get("port2", ""))
        yield Candidate(
            "port-in-use-internal", 3, case.evidence(hit), {"port": port} if port else {}, hit.line, hit.start
        )
    for hit in case.all("port.busy"):
        near = "\n".join(c.text for c in hit.before[-30:]).lower() + hit.text.lower()
        if any(abs(h.line - hit.line) < 40 for h in inner):
            continue
        internal = prose("internal_port").search(near)
        cause = "port-in-use-internal" if internal else "port-in-use"
        yield Candidate(cause, 3, case.evidence(hit), _port_values(case, hit), hit.line, hit.start)


def _port_values(case: Case, hit: Hit) -> dict[str, str]:
    number = next((n.groups for n in case.all("port.number") if n.line == hit.line), {})
    args = case.last("args")
    port = next(iter(number.values()), "") or hit.groups.get("port", "") or case.option("port")
    asked = re.search(r"'port': (\d{2,5})", args.text) if args and not port else None
    port = asked[1] if asked else port
    if not port:
        return {}
    values = {"port": port, "port_next": str(int(port) + 1)}
    for entry in case.known("ports") or []:
        if isinstance(entry, dict) and str(entry.get("port")) == port and entry.get("pid"):
            values["holder"] = f"{entry['pid']} ({entry.get('process')})"
    return values


def _hub(case: Case) -> Iterator[Candidate]:
    """401 against 403: the later, more exact one decides; a restricted model names its kind."""
    named = case.first("hf.repo")
    repo = next((v for v in named.groups.values() if v), "") if named else ""
    values = {"repo": repo} if repo else {}
    for hit in case.all("hf-401"):
        yield Candidate("hf-unauthorized", 3, case.evidence(hit), values, hit.line, hit.start)
    for hit in case.all("hf-403"):
        yield Candidate("hf-forbidden", 3, case.evidence(hit), values, hit.line, hit.start)
    for hit in case.all("repo-missing"):
        found = next((v for k, v in sorted(hit.groups.items()) if k.startswith("repo")), repo)
        private = "Repository Not Found" in hit.text and case.has("hf-401")
        yield Candidate(
            "hub-repo-not-found",
            1 if private else 3,
            case.evidence(hit),
            {"repo": found} if found else {},
            hit.line,
            hit.start,
        )


def _limits(case: Case) -> Iterator[Candidate]:
    for hit in case.all("memlock"):
        limit = hit.groups.get("limit", hit.groups.get("limit2", ""))
        yield Candidate(
            "memlock-limit", 3, case.evidence(hit), {"limit": limit} if limit else {}, hit.line, hit.start
        )


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "sandbox": _sandbox,
    "read-only": _readonly,
    "permission": _permission,
    "disk": _disk,
    "shm": _shm_probe,
    "timeouts": _timeouts,
    "service-env": _env_path,
    "keys": _keys,
    "ports": _ports,
    "hub": _hub,
    "limits": _limits,
}
