"""Cards: Xids, counters, and what a card can not compute."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.rules.driver import gpus_of, inner
from checks.outcome import Evidence

__all__ = ["RULES"]

#: Xids by meaning (NVIDIA's Xid catalogue).
MEMORY_XIDS = {48, 63, 64, 92, 94, 95, 140, 160, 171, 172}
BUS_XIDS = {79}
APPLICATION_XIDS = {13, 31, 43, 45, 68, 109}
#: A channel ended with its process: what the other cards of a job say when one of them is lost.
TORN_DOWN_XIDS = {43, 45}
#: NVLink, the card's micro-controllers and its GSP.
OTHER_XIDS = {61, 62, 74, 119, 120, 143, 145, 149}
HARDWARE_XIDS = MEMORY_XIDS | BUS_XIDS | OTHER_XIDS


def _xids(case: Case) -> Iterator[Candidate]:
    """All Xids of log, kernel log and facts together: one meaning, several, or a demand to reboot."""
    seen: list[tuple[int, str, Evidence]] = []
    for hit in case.all("xid"):
        number = int(hit.groups.get("xid", hit.groups.get("xid2", 0)))
        pci = hit.groups.get("pci", hit.groups.get("pci2", ""))
        seen += [(number, pci, e) for e in case.evidence(hit)]
    seen += _xid_facts(case)
    if not seen:
        return
    numbers = {n for n, _, _ in seen}
    lines = tuple(e for _, _, e in seen[:4])
    first = case.first("xid")
    at = first.line if first else -1
    reboot = case.said(r"node reboot|reboot required") or case.has("node-reboot")
    if 154 in numbers and (reboot or case.has("cuinit.999") or case.said("999")):
        yield Candidate("gpu-xid-node-reboot", 3, lines, {}, at)
    for cause, strength, values in _by_meaning(seen, numbers):
        yield Candidate(cause, strength, lines, values, at)


def _by_meaning(
    seen: list[tuple[int, str, Evidence]], numbers: set[int]
) -> Iterator[tuple[str, int, dict[str, str]]]:
    hard = {(n, p) for n, p, _ in seen if n in HARDWARE_XIDS}
    soft = {(n, p) for n, p, _ in seen if n in APPLICATION_XIDS}
    if {n for n, _ in hard} & BUS_XIDS:
        soft = {(n, p) for n, p in soft if n not in TORN_DOWN_XIDS}
    places = {p for _, p, _ in seen}
    if (hard and soft and len(places) > 1 and {p for _, p in hard} != {p for _, p in soft}) or _apart(hard):
        values = {
            "hardware": ", ".join(f"{p} (Xid {n})" for n, p in sorted(hard)),
            "application": ", ".join(f"{p} (Xid {n})" for n, p in sorted(soft)),
        }
        yield "gpu-xid-mixed", 3, values
    if numbers & BUS_XIDS:
        pci = next((p for n, p in sorted(hard) if n in BUS_XIDS and p), "")
        yield "gpu-xid-fell-off-bus", 3, {"pci": pci} if pci else {}
    if numbers & MEMORY_XIDS:
        pci = next((p for n, p in sorted(hard) if n in MEMORY_XIDS and p), "")
        yield "gpu-xid-ecc", 3 if not (hard and soft) else 2, {"pci": pci} if pci else {}
    if numbers & OTHER_XIDS:
        yield "gpu-xid-other", 2, {}


def _apart(hard: set[tuple[int, str]]) -> bool:
    """One card lost its bus and another its memory: two faults, not one."""
    bus = {p for n, p in hard if n in BUS_XIDS}
    memory = {p for n, p in hard if n in MEMORY_XIDS}
    return bool(bus and memory and not bus & memory)


def _xid_facts(case: Case) -> list[tuple[int, str, Evidence]]:
    """``xid`` of a probe or of flat facts: [{code|xid, pci|gpu, text|action}]."""
    found = case.known("xid") if case.probe else case.facts.get("xid")
    out: list[tuple[int, str, Evidence]] = []
    for item in found if isinstance(found, list) else []:
        if isinstance(item, dict) and str(item.get("code", item.get("xid", ""))).isdigit():
            number = int(str(item.get("code", item.get("xid"))))
            out.append((number, str(item.get("pci", item.get("gpu", ""))), case.fact("xid", str(item))))
    return out


def _cards(case: Case) -> Iterator[Candidate]:
    """ECC counters and remapped rows of a probe."""
    for gpu in gpus_of(case):
        rows, ecc = inner(gpu, "remapped"), inner(gpu, "ecc")
        bad = rows.get("failed") or rows.get("pending") or (ecc.get("volatile_uncorrected") or 0)
        if bad is True or (isinstance(bad, int) and bad > 0):
            why = case.fact(f"gpus.{gpu.get('index')}", f"remapped {rows}, ecc {ecc}")
            yield Candidate("gpu-xid-ecc", 2, (why,), {"pci": str(gpu.get("pci", ""))})
        if "lost" in str(gpu.get("error", "")).lower():
            yield Candidate(
                "gpu-xid-fell-off-bus", 3, (case.fact(f"gpus.{gpu.get('index')}.error", str(gpu["error"])),)
            )
    error = case.known("driver.nvml_error")
    if error and "mismatch" not in str(error).lower() and not case.known("gpus"):
        yield Candidate("gpu-not-visible", 2, (case.fact("driver.nvml_error", str(error)),))


def _kernel_image(case: Case) -> Iterator[Candidate]:
    for hit in case.all("no-kernel"):
        archs = case.last("torch.archs")
        cc = next((h.groups[k] for h in case.all("no-kernel") for k in ("cc", "cc2") if h.groups.get(k)), "")
        values = {"cc": cc, "archs": archs.groups["archs"]} if archs and cc else {}
        yield Candidate("torch-no-kernel-image", 3, case.evidence(hit), values, hit.line, hit.start)


def _dtype(case: Case) -> Iterator[Candidate]:
    for hit in case.all("dtype"):
        values = {k: v for k, v in hit.groups.items() if k in {"cc", "kv_fp8"}}
        cap = hit.groups.get("cap", "")
        if cap:
            values["cc"] = f"{int(cap) // 10}.{int(cap) % 10}"
        if re.search(r"b(?:f|float)16", hit.text, re.IGNORECASE):
            values["bf16"] = "1"
        yield Candidate("dtype-unsupported-cc", 3, case.evidence(hit), values, hit.line, hit.start)


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "xid": _xids,
    "cards": _cards,
    "kernel-image": _kernel_image,
    "dtype": _dtype,
}
