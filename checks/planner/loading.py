"""Target and draft weights of one start, from tensor headers where they are known, else from the shapes."""

from checks.planner.from_tensors import params_from_tensors
from checks.planner.scenario import Scenario
from checks.planner.units import allocated
from checks.planner.weights import Param, draft_params, model_params, total, vocab_bytes
from checks.planner.work import Work

__all__ = ["loaded"]


def loaded(s: Scenario, w: Work) -> tuple[int, int, int]:
    """Bytes on one rank: target, draft, and what a head's own embedding takes until it is shared."""
    unsplit = s.rules.unsplit_weights
    target = total(_target(s, w), unsplit=unsplit)
    if w.draft is None:
        return target, 0, 0
    draft = total(_draft(s, w), unsplit=unsplit)
    shared = not w.own_embed and w.method != "draft_model"
    passing = allocated(vocab_bytes(w.draft.vocab, w.draft, w.tp)) if shared else 0
    return target, draft, passing


def _target(s: Scenario, w: Work) -> list[Param]:
    if s.tensors is not None:
        return params_from_tensors(s.tensors, w.target, w.tp)
    return model_params(w.target, w.tp, w.scheme)


def _draft(s: Scenario, w: Work) -> list[Param]:
    draft = w.draft
    if draft is None:
        return []
    if s.draft_tensors is not None and s.load_format != "dummy":
        shared = () if w.own_embed or w.method == "draft_model" else ("embed_tokens",)
        return params_from_tensors(s.draft_tensors, draft, w.tp, drop=shared)
    return draft_params(
        draft, w.target, w.method, w.tp, w.draft_scheme, own_head=w.own_head, own_embed=w.own_embed
    )
