"""Wheels, Python and the CUDA toolkit."""

import re
from collections.abc import Callable, Iterator

from checks.doctor.case import Case
from checks.doctor.model import Candidate

__all__ = ["RULES"]

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
    "stack": _stack,
    "python": _python,
    "cuda-home": _cuda_home,
}
