"""The host's own memory: RAM, locked, registered, pinned."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.rules.phases import lines_near

__all__ = ["RULES"]


def _ram(case: Case) -> Iterator[Candidate]:
    """A kernel line is proof; a bare signal 9 is a good guess unless systemd sent it."""
    for hit in case.all("ram-oom-kernel"):
        if "rss_kb" in hit.groups:
            rss = {"rss_gib": f"{int(hit.groups['rss_kb']) / 2**20:.1f}"}
            yield Candidate("host-ram-oom", 3, case.evidence(hit), rss, hit.line, -1)
    hit9 = case.first("signal9")
    if hit9 is None or case.has("start-timeout") or case.before("shutdown", hit9):
        return
    full = case.said(r"ram|host memory|swap|memory limit|mem_limit|memorymax|oom")
    yield Candidate(
        "host-ram-oom",
        3 if full else 2,
        case.evidence(hit9),
        {},
        hit9.line,
        hit9.start,
    )


def _registration(case: Case) -> Iterator[Candidate]:
    """Memory registration: the limit, or this kernel's accounting."""
    hit = case.first("regmr") or case.first("memlock")
    if hit is None:
        return
    cma = {h.groups["which"].lower(): int(h.groups["kb"]) for h in case.all("cma")}
    info = case.facts.get("meminfo")
    if isinstance(info, dict):
        cma |= {
            k[3:].split("_")[0].lower(): int(v)
            for k, v in info.items()
            if str(k).lower().startswith("cma") and str(v).isdigit()
        }
    odd = "free" in cma and cma["free"] > cma.get("total", 0)
    if odd or case.has("kho") or case.said(r"kho\b|kexec[- ]handover"):
        lines = case.evidence(hit, case.first("cma"), case.first("kho"))
        yield Candidate("host-kernel-kho-cma", 3, lines, {}, hit.line, hit.start)
    unlimited = case.said(r"memlock\W{1,4}unlimited") or (
        case.unit and case.unit.get("LimitMEMLOCK") == "infinity"
    )
    if hit.sig.mark == "regmr" and not unlimited:
        yield Candidate("memlock-limit", 1 if odd else 2, case.evidence(hit), {}, hit.line, hit.start)


def _pinned(case: Case) -> Iterator[Candidate]:
    for hit in case.all("cuda.invalid-argument"):
        near = lines_near(hit)
        if re.search(r"pin_memory ?= ?true|\.pin_memory\(|cudahostalloc|pinned", near) or case.said(
            r"pin(?:ned|_memory)|local_cpu_size"
        ):
            yield Candidate(
                "pinned-memory-limit", 3, case.evidence(hit, case.first("pin.frame")), {}, hit.line, hit.start
            )


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "host-ram": _ram,
    "registration": _registration,
    "pinned": _pinned,
}
