"""Is a host as fast as when its release was proven? Two short benches (systemd/proof.py), prompt by prompt.

The prompts are the same and greedy, so a prompt's own speed and acceptance fall out of the comparison and
what is left is the host.
"""

import statistics
from collections.abc import Mapping
from typing import Any

from checks.bench.model import AgainstBaseline, Answer, Moved
from checks.bench.statistics import change, judged, paired_change

__all__ = ["against", "samples"]

#: What is compared: key of a sample, what it is called.
_COMPARED = (("tokens_per_s", "tokens/s"), ("step_tokens", "tokens a step"))

Proof = Mapping[str, Any]


def samples(proof: Proof, key: str) -> dict[int, float]:
    """Median over the rounds by prompt; empty for a proof of an older release."""
    found: dict[int, list[float]] = {}
    for s in proof.get("samples") or ():
        told = s if isinstance(s, dict) else {}
        prompt, value = told.get("prompt"), told.get(key)
        if isinstance(prompt, int) and isinstance(value, int | float) and value > 0:
            found.setdefault(prompt, []).append(float(value))
    return {p: statistics.median(v) for p, v in found.items()}


def against(now: Proof, before: Proof | None) -> AgainstBaseline:
    """Pass, fail or can't tell, by number and in all. A number that one side lacks is never a pass."""
    if not before:
        return AgainstBaseline(answer="can't tell", text="no baseline is recorded on this host")
    rows = [m for key, name in _COMPARED if (m := _moved(now, before, key, name))]
    if not any(r.name == "tokens/s" for r in rows):
        why = "its baseline has no samples by prompt: it was recorded by an older eyas, or gave no tokens"
        return AgainstBaseline(answer="can't tell", rows=tuple(rows), text=why)
    worst: Answer = "pass"
    for r in rows:
        worst = r.answer if r.answer == "fail" or worst == "pass" else worst
    return AgainstBaseline(answer=worst, rows=tuple(rows), text="; ".join(_text(r) for r in rows))


def _moved(now: Proof, before: Proof, key: str, name: str) -> Moved | None:
    new, old = samples(now, key), samples(before, key)
    both = sorted(set(new) & set(old))
    if not old and not new:
        return None
    if not both:
        return _one_sided(name, old)
    ratio = paired_change([new[p] for p in both], [old[p] for p in both])
    by, low, high = change(ratio)
    return Moved(
        name=name,
        now=statistics.median(new[p] for p in both),
        before=statistics.median(old[p] for p in both),
        change=by,
        low=low,
        high=high,
        answer=judged(ratio),
    )


def _one_sided(name: str, old: Mapping[int, float]) -> Moved | None:
    """Only one of both has it. Drafts that were made then and are not now are the largest drop there is."""
    if not old or name != "tokens a step":
        return None
    before = statistics.median(old.values())
    return Moved(name=name, now=1.0, before=before, change=1 / before - 1, answer="fail")


def _text(m: Moved) -> str:
    interval = f" ({m.low:+.1%} to {m.high:+.1%})" if m.low is not None and m.high is not None else ""
    return f"{m.name} {m.now:.4g}, was {m.before:.4g}: {m.change:+.1%}{interval}, {m.answer}"
