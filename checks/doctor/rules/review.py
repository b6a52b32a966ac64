"""What the host's own review measured (`invoke review`) against what its release was proven with."""

from collections.abc import Callable, Iterator
from typing import Any

from checks.bench.baseline import against
from checks.doctor.case import Case
from checks.doctor.model import Candidate

__all__ = ["RULES"]


def _slower(case: Case) -> Iterator[Candidate]:
    """A drop beyond the noise, of the release that is served; a busy host's speed says nothing about it."""
    reviews, current = case.known("eyas.reviews"), case.known("eyas.current")
    for name, told in reviews.items() if isinstance(reviews, dict) else ():
        if not isinstance(told, dict) or told.get("release") != _served(current, name):
            continue
        now, before = told.get("now"), told.get("baseline")
        if not isinstance(now, dict) or not isinstance(before, dict):
            continue
        found = against(now, before)
        fell = [r for r in found.rows if r.answer == "fail" and not (told.get("busy") and "/s" in r.name)]
        if fell:
            text = "; ".join(f"{r.name} {r.now:.4g}, was {r.before:.4g} ({r.change:+.1%})" for r in fell)
            drafts = any(r.name == "tokens a step" for r in fell)
            slug = "acceptance-dropped" if drafts else "speed-dropped"
            yield Candidate(slug, 1, (case.fact(f"eyas.reviews.{name}", text),), {"deployment": name})


def _served(current: Any, name: str) -> str | None:
    return current.get(name) if isinstance(current, dict) else None


RULES: dict[str, Callable[[Case], Iterator[Candidate]]] = {"review": _slower}
