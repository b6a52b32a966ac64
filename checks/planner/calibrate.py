"""Replace estimates by what the engine itself logged at start, and say which number is measured.

Lines of vLLM 0.9 to 0.33 (gpu_worker.py, model_runner.py, kv_cache_utils.py). A line that is absent leaves
its estimate as it is.
"""

import re
from dataclasses import replace

from checks.planner.result import Plan, Term, band_of
from checks.planner.units import GIB, gib

__all__ = ["Measured", "calibrate", "read_log"]

_NUMBER = r"([0-9][0-9,]*\.?[0-9]*)"
_LINES = {
    "weights": re.compile(rf"Model loading took {_NUMBER} GiB"),
    "available": re.compile(rf"Available KV cache memory: {_NUMBER} GiB"),
    "tokens": re.compile(rf"[CG]PU KV cache size: {_NUMBER} tokens"),
    "graphs": re.compile(rf"Graph capturing finished in [0-9.]+ secs?, took {_NUMBER} GiB"),
}


class Measured(dict[str, float]):
    """What a log says: ``weights``, ``available``, ``graphs`` in GiB, ``tokens`` as a count."""


def read_log(text: str) -> Measured:
    """The last value of each line; ranks log the same or nearly the same numbers, the largest counts."""
    found = Measured()
    start = text.rfind("Initializing a V1 LLM engine")
    for name, pattern in _LINES.items():
        values = [float(v.replace(",", "")) for v in pattern.findall(text[max(start, 0) :])]
        if values:
            found[name] = min(values) if name in {"available", "tokens"} else max(values)
    return found


def calibrate(plan: Plan, startup_log_text: str, nvml_used: int | None = None) -> Plan:
    """``plan`` with measured numbers where the log or NVML (bytes used on one GPU) gives them.

    What the log does not split (buffers, warm-up) takes up the difference to the device's real use.
    """
    seen = read_log(startup_log_text)
    if not seen and nvml_used is None:
        return replace(plan, notes=(*plan.notes, "the log holds no memory lines: nothing is measured"))
    terms = _terms(plan.terms, seen)
    peak = plan.device_peak
    if nvml_used is not None:
        terms, peak = _fit_device(terms, nvml_used), nvml_used
    elif peak is not None:
        peak = sum(t.nbytes for t in terms)
    names = ", ".join(sorted(seen)) + (", device use" if nvml_used is not None else "")
    return replace(
        plan,
        terms=terms,
        weights=_bytes(seen, "weights", plan.weights),
        available_kv=_bytes(seen, "available", plan.available_kv),
        kv_tokens=int(seen["tokens"]) if "tokens" in seen else plan.kv_tokens,
        concurrency=_concurrency(plan, seen),
        device_peak=peak,
        stop=None if "tokens" in seen and nvml_used is not None else plan.stop,
        band=band_of(terms) if nvml_used is None else GIB // 10,
        notes=(*plan.notes, f"measured on this host's start: {names}"),
    )


def _bytes(seen: Measured, name: str, estimate: int | None) -> int | None:
    return int(seen[name] * GIB) if name in seen else estimate


def _concurrency(plan: Plan, seen: Measured) -> float | None:
    if "tokens" not in seen or not plan.max_len:
        return plan.concurrency
    return seen["tokens"] / plan.max_len


def _terms(terms: tuple[Term, ...], seen: Measured) -> tuple[Term, ...]:
    """Weights, KV cache and graphs as logged. The draft's part of the weights stays as estimated."""
    found: list[Term] = []
    draft = sum(t.nbytes for t in terms if t.name == "draft weights")
    for t in terms:
        if t.name == "target weights" and "weights" in seen:
            found.append(_as_measured(t, int(seen["weights"] * GIB) - draft, "log: Model loading took"))
        elif t.name == "KV cache" and "available" in seen:
            found.append(_as_measured(t, int(seen["available"] * GIB), "log: Available KV cache memory"))
        elif t.name == "CUDA graphs" and "graphs" in seen:
            found.append(_as_measured(t, int(seen["graphs"] * GIB), "log: Graph capturing finished"))
        else:
            found.append(t)
    return tuple(found)


def _as_measured(term: Term, nbytes: int, source: str) -> Term:
    return Term(term.name, nbytes, GIB // 200, source, measured=True, budgeted=term.budgeted)


def _fit_device(terms: tuple[Term, ...], used: int) -> tuple[Term, ...]:
    """Lay the difference between real and planned use on the terms nobody measured, as one term."""
    measured = tuple(t for t in terms if t.measured)
    rest = used - sum(t.nbytes for t in measured)
    if not measured or rest < 0:
        return (Term("device", used, GIB // 100, f"NVML: {gib(used)} GiB in use", measured=True),)
    return (
        *measured,
        Term("context, buffers, warm-up", rest, GIB // 100, "NVML minus the log", measured=True),
    )
