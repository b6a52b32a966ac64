"""Ports, keys, the hub, limits."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose
from checks.doctor.scan import Hit
from checks.outcome import Severity

__all__ = ["RULES"]

_HEALTH = re.compile(
    r"^/(?:health\w*|healthz|ready|readyz|livez|ping|metrics|v1/models|get_model_info|server_info)\b"
)


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


def _family(case: Case) -> Iterator[Candidate]:
    """It listens on one family, and the client that is refused asks the other."""
    for told in case.all("listens"):
        other = (h for h in case.all("refused") if h.groups["port"] == told.groups["port"])
        hit = next(
            (h for h in other if (":" in h.groups["address"]) != (":" in told.groups["address"])), None
        )
        if hit:
            yield Candidate("bind-address-family", 2, case.evidence(told, hit), {}, told.line, told.start)


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
    "keys": _keys,
    "ports": _ports,
    "address-family": _family,
    "hub": _hub,
    "limits": _limits,
}
