"""The gate: every rule over one pair, a verdict, and what fits the target instead."""

from collections.abc import Iterator
from typing import Any

from checks.modelmeta import ModelMeta
from checks.pairgate import rules_engine, rules_fit, rules_parallel, rules_shape
from checks.pairgate.case import Case
from checks.pairgate.catalogue import Roles, roles_of
from checks.pairgate.model import PairVerdict, PairWant, Reason, Verdict
from checks.pairgate.views import Draft, Model
from inventory.pairs import MissingRepo, Pairs, load_pairs

__all__ = ["alternatives", "check_pair", "missing_draft"]

RULES = (*rules_engine.RULES, *rules_shape.RULES, *rules_parallel.RULES, *rules_fit.RULES)


def check_pair(
    target: ModelMeta, draft: ModelMeta, want: PairWant | None = None, pairs: Pairs | None = None
) -> PairVerdict:
    """Judge a pair from metadata alone.

    Raises UsageError for an engine version that the catalogue doesn't cover.
    """
    want, pairs = want or PairWant(), pairs or load_pairs()
    roles = roles_of(want.engine, want.version)
    case = Case(Model(target), Draft(draft), want, roles, pairs)
    reasons = sorted(_reasons(case), key=lambda r: r.severity != "refuse")
    verdict = _verdict(reasons)
    others = alternatives(target.label, roles, pairs, but=draft.label) if reasons else ()
    return PairVerdict(verdict, case.method, tuple(reasons), others, tuple(_notes(case)))


def missing_draft(
    target: str, draft: str, why: str, want: PairWant, pairs: Pairs | None = None
) -> PairVerdict:
    """The verdict for a draft that is not there: its nearest real names, and what serves the target."""
    pairs = pairs or load_pairs()
    known = pairs.missing(draft)
    nearest = pairs.nearest(draft)
    near = (
        f"the nearest existing names are {', '.join(nearest)}" if nearest else "no published name is like it"
    )
    reason = Reason(
        "spec-draft-missing",
        "draft",
        target,
        draft,
        f"{why}; {near}." + (f" {_sentence(known)}" if known else ""),
        _instead(known, nearest),
        f"Invalid repository ID or local directory specified: '{draft}'.",
    )
    others = alternatives(target, roles_of(want.engine, want.version), pairs)
    return PairVerdict("refuse", want.method or (known.fallback if known else "none"), (reason,), others)


def _sentence(known: MissingRepo) -> str:
    return known.text[:1].upper() + known.text[1:]


def _instead(known: MissingRepo | None, nearest: tuple[str, ...]) -> str:
    if known and known.fits:
        return f"{known.fits[0]} with method {known.fallback}."
    if known:
        return f"method {known.fallback}."
    return f"{nearest[0]}, if it was meant, or method ngram." if nearest else "method ngram."


def alternatives(target: str, roles: Roles, pairs: Pairs, but: str = "") -> tuple[dict[str, Any], ...]:
    """Drafts that some source names for this target, best first; n-gram lookup always remains."""
    able = roles["methods"]["supported"]
    heads = [
        {"method": p.method, "draft": p.draft, "source": p.source, "note": p.note}
        for p in pairs.for_target(target, roles.engine)
        if p.method in able and p.draft.lower() != but.lower()
    ]
    small = [
        {"method": "draft_model", "draft": s.draft, "source": s.source, "note": s.note}
        for s in pairs.small_drafts(target)
        if "draft_model" in able and s.draft.lower() != but.lower()
    ]
    ngram = {
        "method": "ngram",
        "draft": None,
        "source": "built into the engine",
        "note": "guesses from the prompt itself; gains where the answer repeats it, as edits of code do",
    }
    return (*heads, *small, ngram)


def _reasons(case: Case) -> Iterator[Reason]:
    for rule in RULES:
        yield from rule(case)


def _verdict(reasons: list[Reason]) -> Verdict:
    if any(r.severity == "refuse" for r in reasons):
        return "refuse"
    return "warn" if reasons else "ok"


def _notes(case: Case) -> Iterator[str]:
    if case.detected and case.detected != case.method:
        yield (
            f"without a written method {case.roles.name} takes this draft for {case.detected}, by its name"
            f" alone; write method {case.method}"
        )
    given = case.want.draft_tensor_parallel
    if case.is_head and given not in {None, case.tp} and case.roles["draft_tp"]["head"] == "ignored":
        yield f"draft tensor parallel {given} has no effect: the head is split like its target ({case.tp})"
    if case.roles.newer:
        yield f"{case.roles.name} is newer than the catalogue; judged by its last known version"
