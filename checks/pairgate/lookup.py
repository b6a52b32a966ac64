"""From two names to a verdict; one that is not there, or that nobody could look at, is said as such."""

from checks.modelmeta import HubUnreachable, ModelMeta, RepoMissing, load_model_meta
from checks.pairgate.gate import check_pair, missing_draft
from checks.pairgate.model import PairVerdict, PairWant
from inventory.model import ModelRef
from inventory.pairs import Pairs, load_pairs

__all__ = ["judge"]


def judge(
    target: ModelRef,
    draft: ModelRef,
    want: PairWant,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    timeout: float = 10.0,
) -> PairVerdict:
    """Read both models and check the pair.

    A draft that the catalogue knows not to exist is refused without any request, unless ``endpoint`` names a
    hub to ask. Raises what `load_model_meta` raises; for a target that is not there with its nearest names.
    """
    pairs = load_pairs()
    known = pairs.missing(draft.repo) if draft.repo else None
    if known and endpoint is None:
        return missing_draft(
            target.label, draft.label, f"{draft.label} is not published ({known.source})", want, pairs
        )
    try:
        draft_meta = load_model_meta(draft, endpoint=endpoint, token=token, timeout=timeout)
    except RepoMissing as e:
        return missing_draft(target.label, draft.label, e.message, want, pairs)
    except HubUnreachable as e:
        if known:
            why = f"{draft.label} is not published ({known.source}); {e.message}"
            return missing_draft(target.label, draft.label, why, want, pairs)
        _add_names(e, draft, pairs)
        raise
    return check_pair(_target(target, pairs, endpoint, token, timeout), draft_meta, want, pairs)


def _target(
    ref: ModelRef, pairs: Pairs, endpoint: str | None, token: str | None, timeout: float
) -> ModelMeta:
    try:
        return load_model_meta(ref, endpoint=endpoint, token=token, timeout=timeout)
    except (RepoMissing, HubUnreachable) as e:
        _add_names(e, ref, pairs)
        raise


def _add_names(error: RepoMissing | HubUnreachable, ref: ModelRef, pairs: Pairs) -> None:
    """For a name that no source knows, put the nearest ones that exist before the hint."""
    if ref.repo and not pairs.known(ref.repo):
        near = pairs.nearest(ref.repo)
        names = f"did you mean {', '.join(near)}?" if near else "no published name is like it"
        said = "" if isinstance(error, RepoMissing) else f"no source of the catalogue names {ref.repo}: "
        error.hint = "; ".join(part for part in (f"{said}{names}", error.hint) if part)
