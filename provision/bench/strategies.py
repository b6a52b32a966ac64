"""The deployment with another way to draft: what `--compare` serves one after the other."""

from collections.abc import Mapping, Sequence
from typing import cast

from inventory.errors import UsageError
from inventory.model import METHODS, METHODS_WITH_MODEL, Deployment, Draft, Method, ModelRef
from inventory.nearest import did_you_mean
from inventory.pairs import load_pairs

__all__ = ["parse_drafts", "parse_strategies", "variant", "with_length"]

#: Drafted tokens where nobody said how many; the run itself then says how many are best.
_USUAL = 3


def parse_strategies(text: str) -> tuple[Method, ...]:
    """From "none,ngram,eagle3"; none is always among them, since everything is compared with it."""
    words = [w.strip() for w in text.split(",")]
    for word in words:
        if word not in METHODS:
            hint = did_you_mean(word, METHODS) or f"some of {', '.join(METHODS)}"
            raise UsageError(f"--compare: {word!r} is no way to draft", hint=hint)
    found = [cast("Method", w) for w in dict.fromkeys(words)]
    return tuple(found if "none" in found else ["none", *found])


def parse_drafts(text: str) -> dict[str, ModelRef]:
    """From "eagle3=owner/head,draft_model=/folder", by method."""
    found: dict[str, ModelRef] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        method, _, name = part.partition("=")
        if method not in METHODS_WITH_MODEL or not name:
            ways = ", ".join(sorted(METHODS_WITH_MODEL))
            raise UsageError(f"--drafts: {part!r} is not METHOD=REPO", hint=f"METHOD is one of {ways}")
        found[method] = _ref(name)
    return found


def _ref(name: str) -> ModelRef:
    repo, _, revision = name.partition("@")
    try:
        if name.startswith(("/", "~", ".")):
            return ModelRef(path=name)
        return ModelRef(repo=repo, revision=revision or "main")
    except ValueError as e:
        raise UsageError(
            f"--drafts: {name!r} is neither owner/name nor a folder", hint="--drafts eagle3=OWNER/NAME"
        ) from e


def variant(d: Deployment, method: Method, drafts: Mapping[str, ModelRef]) -> Deployment:
    """The deployment with this method. What it says itself counts, then ``drafts``, then the known pairs."""
    if method == d.draft.method and method not in drafts:
        return _deployed(d, d.draft.model_copy(update={"max_batch_size": None}))
    tokens = d.draft.num_speculative_tokens or _USUAL
    if method == "none":
        return _deployed(d, Draft())
    if method == "ngram":
        same = d.draft.method == "ngram"
        low, high = (d.draft.prompt_lookup_min, d.draft.prompt_lookup_max) if same else (2, 4)
        return _deployed(
            d,
            Draft(
                method="ngram", num_speculative_tokens=tokens, prompt_lookup_min=low, prompt_lookup_max=high
            ),
        )
    model = drafts.get(method) or _known(d, method) if method in METHODS_WITH_MODEL else None
    return _deployed(d, Draft(method=method, model=model, num_speculative_tokens=tokens))


def _deployed(d: Deployment, draft: Draft) -> Deployment:
    """Speculation is on at every concurrency: where it should be off is what is measured."""
    return d.model_copy(update={"draft": draft})


def _known(d: Deployment, method: Method) -> ModelRef:
    repo = d.target.label
    pairs = load_pairs()
    names: Sequence[str] = [p.draft for p in pairs.for_target(repo, d.engine) if p.method == method]
    if method == "draft_model":
        names = [s.draft for s in pairs.small_drafts(repo)]
    if not names:
        raise UsageError(
            f"no {method} for {repo} is known",
            hint=f"--drafts {method}=OWNER/NAME, or leave it out of --compare",
        )
    return ModelRef(repo=names[0])


def with_length(d: Deployment, tokens: int) -> Deployment:
    draft = d.draft.model_copy(update={"num_speculative_tokens": tokens})
    return d.model_copy(update={"draft": draft})
