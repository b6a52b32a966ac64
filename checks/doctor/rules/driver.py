"""The driver: its age, its two halves, who owns the card, the fabric manager."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from checks.doctor.case import Case
from checks.doctor.model import Candidate
from checks.doctor.patterns import prose

__all__ = ["RULES", "gpus_of", "inner"]

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
    said = case.said(prose("fabric_stopped"))
    if said and not case.has("fm-version"):
        yield Candidate("driver-fabric-manager", 2, (case.fact("text", said[0]),))
    manager = case.known("driver.fabric_manager")
    driver = case.known("driver.module_version")
    waiting = [
        g
        for g in gpus_of(case)
        if inner(g, "fabric").get("state")
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


def gpus_of(case: Case) -> list[dict[str, Any]]:
    gpus = case.known("gpus")
    return [g for g in gpus if isinstance(g, dict)] if isinstance(gpus, list) else []


def inner(tree: dict[str, Any], key: str) -> dict[str, Any]:
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


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "driver-age": _driver_old,
    "driver-mismatch": _mismatch,
    "fabric-manager": _fabric,
    "driver-modules": _modules,
}
