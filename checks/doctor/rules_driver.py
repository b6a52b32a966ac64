"""Driver, cards, CUDA, Python: log lines together with what the probe or flat facts say."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.outcome import Evidence

__all__ = ["RULES"]

#: Xids by meaning (NVIDIA's Xid catalogue).
MEMORY_XIDS = {48, 63, 64, 92, 94, 95, 140, 160, 171, 172}
BUS_XIDS = {79}
APPLICATION_XIDS = {13, 31, 43, 45, 68, 109}
HARDWARE_XIDS = MEMORY_XIDS | BUS_XIDS | {62, 74, 119, 120, 143, 145, 149}
#: CUDA major version of a wheel to the first driver branch that runs it (minor-version compatibility).
DRIVER_FLOOR = {11: 450, 12: 525, 13: 580}


def _cuda_of(text: str) -> str:
    """CUDA version of a wheel name: 2.12.0+cu132 is 13.2, cu126 is 12.6."""
    found = re.search(r"cu(\d{2})(\d)\b", text)
    return f"{found[1]}.{found[2]}" if found else ""


def _driver_old(case: Case) -> Iterator[Candidate]:
    for hit in case.all("driver-old") + case.all("driver-insufficient"):
        yield Candidate(
            "driver-too-old", 3, case.evidence(hit), _cuda_values(case, hit.groups), hit.line, hit.start
        )
    driver = re.match(r"(\d{3})", str(case.known("driver.module_version") or case.says("driver")))
    wheel = _cuda_of(case.says("torch") + " " + case.says("wheel", "install", "pip"))
    if driver and wheel and int(driver[1]) < DRIVER_FLOOR.get(int(wheel.split(".")[0]), 0):
        why = case.fact("driver", f"driver {driver[0]}, torch for CUDA {wheel}")
        yield Candidate("driver-too-old", 2, (why,), _cuda_values(case, {}))


def _cuda_values(case: Case, groups: dict[str, str]) -> dict[str, str]:
    found = groups.get("found", "")
    has = f"{int(found) // 1000}.{int(found) % 1000 // 10}" if found else case.says("cuda_driver")
    wants = groups.get("want") or _cuda_of(case.says("torch"))
    values: dict[str, str] = {}
    if has:
        values["cuda_has_major"] = has.split(".")[0]
    if has and wants:
        floor = DRIVER_FLOOR.get(int(wants.split(".")[0]), 580)
        values |= {"cuda_has": has, "cuda_wants": wants, "driver_needed": str(floor)}
    return values


def _mismatch(case: Case) -> Iterator[Candidate]:
    module, library = case.known("driver.module_version"), case.known("driver.library_version")
    said = case.last("nvml.module")
    api = next((h for h in case.all("nvml-mismatch") if h.groups.get("library")), None)
    values = {"library": str(library), "module": str(module)} if module and library else {}
    if said and api:
        values = {"library": api.groups["library"], "module": said.groups["module"]}
    for hit in case.all("nvml-mismatch"):
        yield Candidate("driver-nvml-mismatch", 3, case.evidence(hit), values, hit.line)
    if module and library and module != library:
        why = case.fact("driver", f"module {module}, library {library}")
        yield Candidate("driver-nvml-mismatch", 3, (why,), values)


def _fabric(case: Case) -> Iterator[Candidate]:
    for hit in case.all("fm-version"):
        values = dict(hit.groups)
        if "driver" in values:
            values["branch"] = values["driver"].split(".")[0]
        yield Candidate("driver-fabric-manager", 3, case.evidence(hit), values, hit.line)
    manager = case.known("driver.fabric_manager")
    driver = case.known("driver.module_version")
    waiting = [
        g
        for g in _gpus(case)
        if _dict(g, "fabric").get("state")
        in {"not_started", "not started", "in_progress", "in progress", 1, 2}
    ]
    if isinstance(manager, dict) and waiting and manager.get("active") not in {True, "active"}:
        why = case.fact("driver.fabric_manager", f"{manager}; fabric state {waiting[0].get('fabric')}")
        yield Candidate("driver-fabric-manager", 3, (why,))
    version = manager.get("version") if isinstance(manager, dict) else None
    if version and driver and str(version).split("-")[0] != driver:
        values = {"fm": str(version), "driver": str(driver), "branch": str(driver).split(".")[0]}
        yield Candidate(
            "driver-fabric-manager", 2, (case.fact("driver.fabric_manager", str(version)),), values
        )


def _gpus(case: Case) -> list[dict[str, Any]]:
    gpus = case.known("gpus")
    return [g for g in gpus if isinstance(g, dict)] if isinstance(gpus, list) else []


def _dict(tree: dict[str, Any], key: str) -> dict[str, Any]:
    value = tree.get(key)
    return value if isinstance(value, dict) else {}


def _modules(case: Case) -> Iterator[Candidate]:
    """Who owns the card, and may the module load at all."""
    for hit in case.all("conflict-module"):
        owner = next((v for k, v in hit.groups.items() if k.startswith("owner")), "")
        yield Candidate(
            "driver-conflicting-module", 3, case.evidence(hit), {"owner": owner} if owner else {}, hit.line
        )
    for name in ("nouveau", "nova"):
        if case.known(f"driver.{name}") is True:
            yield Candidate(
                "driver-conflicting-module", 3, (case.fact(f"driver.{name}", "loaded"),), {"owner": name}
            )
    secure = case.known("driver.secure_boot") is True or bool(
        case.said(r"secure[_ ]?boot\W{1,4}(?:on|enabled|true|yes|active)")
    )
    load = case.last("nvidia-ko.load")
    if load and secure:
        yield Candidate("driver-secure-boot", 3, case.evidence(load), {}, load.line)
    elif load and not case.has("conflict-module"):
        if case.has("nvrm.noprobe") or case.said(r"nouveau|nova"):
            yield Candidate(
                "driver-conflicting-module", 2, case.evidence(load, case.first("nvrm.noprobe")), {}, load.line
            )
        yield Candidate("driver-secure-boot", 1, case.evidence(load), {}, load.line)
    elif secure and case.has("gpu-invisible") and not case.known("driver.module_version") and case.probe:
        yield Candidate(
            "driver-secure-boot", 2, (case.fact("driver.secure_boot", "on, and no module loaded"),)
        )


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
    places = {p for _, p, _ in seen}
    if hard and soft and len(places) > 1 and {p for _, p in hard} != {p for _, p in soft}:
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
    for gpu in _gpus(case):
        rows, ecc = _dict(gpu, "remapped"), _dict(gpu, "ecc")
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


_PARTNERS = {
    "2.4": "0.19",
    "2.5": "0.20",
    "2.6": "0.21",
    "2.7": "0.22",
    "2.8": "0.23",
    "2.9": "0.24",
    "2.10": "0.25",
    "2.11": "0.26",
}


def _stack(case: Case) -> Iterator[Candidate]:
    """Values for the wheel causes: which torch, which partner, which library."""
    torch = re.match(r"\d+\.\d+(?:\.\d+)?", case.says("torch"))
    for hit in case.all("abi") + case.all("abi-op"):
        vision = re.search(r"torchvision|torchaudio", hit.text)
        cause = "torchvision-mismatch" if vision else "torch-abi-mismatch"
        lib = re.search(r"undefined symbol: (?:cu|nv|__nv|cublas|nccl)\w", hit.text)
        if lib:
            yield Candidate("cuda-runtime-lib-missing", 2, case.evidence(hit), {}, hit.line, hit.start)
        yield Candidate(
            cause, 3, case.evidence(hit), {"torch": torch[0]} if torch else {}, hit.line, hit.start
        )
    for hit in case.all("torchvision"):
        partner = _PARTNERS.get(".".join(torch[0].split(".")[:2])) if torch else None
        values = {"torch": torch[0], "torchvision": f"{partner}.*"} if torch and partner else {}
        yield Candidate("torchvision-mismatch", 3, case.evidence(hit), values, hit.line, hit.start)


def _python(case: Case) -> Iterator[Candidate]:
    """A source build where wheels should be: the Python has no wheel."""
    hit = case.first("python.build")
    version = re.match(r"3\.(\d+)", case.says("python") or str(case.known("python.version") or ""))
    odd = version is not None and not 9 <= int(version[1]) <= 13
    if hit and odd and version:
        yield Candidate(
            "python-unsupported", 3, case.evidence(hit), {"python": version[0]}, hit.line, hit.start
        )
    elif hit and not case.has("nvcc-missing", "toolchain", "cuda-home", "tool.missing", "nvcc"):
        yield Candidate(
            "python-unsupported",
            2,
            case.evidence(hit),
            {"python": version[0]} if version else {},
            hit.line,
            hit.start,
        )
    elif odd and version and case.has("exception"):
        yield Candidate("python-unsupported", 1, (case.fact("python", version[0]),), {"python": version[0]})


def _cuda_home(case: Case) -> Iterator[Candidate]:
    """A broken value in the log, the facts or the unit."""
    for hit in case.all("cuda-home"):
        broken = next((v for k, v in hit.groups.items() if k.startswith("broken")), "").strip("'")
        yield Candidate(
            "cuda-home-malformed", 3, case.evidence(hit), _home_values(broken), hit.line, hit.start
        )
    unit = case.unit.environment.get("CUDA_HOME", "") if case.unit else ""
    said = case.said(r"cuda_home[\"']?\s{0,2}[=:]\s{0,2}[\"']?([^\s,}\n]{1,120})")
    path = case.unit.environment.get("PATH", "") if case.unit else ""
    if "$" in path or "~" in path:
        strength = 3 if case.has("nvcc", "tool.missing", "exec.203") else 1
        evidence = (case.fact("unit:PATH", f"{path}: systemd expands neither $ nor ~"),)
        yield Candidate("cuda-home-malformed", strength, evidence)
    for value, where in (
        (unit, "unit:CUDA_HOME"),
        (said[1] if said else "", "env"),
        (str(case.known("cuda.home") or ""), "cuda.home"),
    ):
        if re.search(
            r":/|:$|^:|\$|[\"'].|/nvcc$|/bin/?$|\s$",
            value.strip("\"'") if value[:1] in "\"'" and value[-1:] == value[:1] else value,
        ):
            strength = 3 if case.has("nvcc-missing", "nvcc", "tool.missing") else 1
            yield Candidate("cuda-home-malformed", strength, (case.fact(where, value),), _home_values(value))


def _home_values(broken: str) -> dict[str, str]:
    folder = re.search(r"/[\w.-]+(?:/[\w.-]+)*", broken)
    path = re.sub(r"/bin(?:/nvcc)?$", "", folder[0]) if folder else ""
    return {"broken": broken, "cuda_home": path} if path and broken else {}


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "driver-age": _driver_old,
    "driver-mismatch": _mismatch,
    "fabric-manager": _fabric,
    "driver-modules": _modules,
    "xid": _xids,
    "cards": _cards,
    "kernel-image": _kernel_image,
    "dtype": _dtype,
    "stack": _stack,
    "python": _python,
    "cuda-home": _cuda_home,
}
