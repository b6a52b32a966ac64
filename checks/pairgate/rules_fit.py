"""Was this draft made for this target, and will it still guess well as served: family, window, tokens."""

from collections.abc import Iterator, Mapping

from checks.facts import Missing
from checks.pairgate.case import Case
from checks.pairgate.model import Reason
from inventory.pairs import base_name

__all__ = ["RULES"]

#: Rope scalings that an engine can't simply enlarge: the draft's own limit counts.
_FIXED_ROPE = frozenset({"yarn", "dynamic", "longrope"})
#: Share of the target's tokens that must have the same id in the draft for its guesses to mean anything.
SAME_TOKENS = 0.9


def positions(case: Case) -> Iterator[Reason]:
    """A draft with a smaller window than what is served."""
    window, served = case.draft.positions, case.served_length
    if window is None or served is None or window >= served:
        return
    if case.is_head and case.roles["positions"]["head"] != "raised":
        yield Reason(
            "spec-context-length-mismatch",
            "max_position_embeddings",
            served,
            window,
            f"The head has {window} positions, requests may have {served} tokens;"
            f" {case.roles.name} does not enlarge it.",
            _longer(case, window, served),
            case.error("positions", positions=window, length=served),
        )
        return
    fixed = case.draft.rope_type in _FIXED_ROPE
    then = (
        f"the engine lowers max_model_len to {window}"
        if fixed
        else f"beyond {window} tokens its guesses are close to worthless and slow the target down"
    )
    yield Reason(
        "spec-draft-context-short",
        "max_position_embeddings",
        served,
        window,
        f"The draft was trained for {window} tokens, requests may have {served}: it starts, but {then}.",
        f"max_model_len near {window}, or a draft trained for longer texts.",
        severity="warn",
    )


def _longer(case: Case, window: int, served: int) -> str:
    raises = (
        "vLLM 0.29.0 or newer" if case.roles.engine == "vllm" else "vLLM 0.29.0 or newer, which enlarges it"
    )
    return f"max_model_len {window}, max_position_embeddings {served} in the head's config.json, or {raises}."


def family(case: Case) -> Iterator[Reason]:
    """The catalogue, or the head itself, names another target."""
    names = _names(case)
    trained = _trained_for(case)
    if not trained or not names or any(case.pairs.same_model(t, n) for t in trained for n in names):
        return
    yield Reason(
        "spec-low-acceptance",
        "trained for",
        names[0],
        trained[0],
        f"The head was trained for {' and '.join(trained)}, not for {names[0]}: even where the shapes agree,"
        " few of its guesses will be accepted.",
        "the head of this very target and release.",
        severity="warn",
    )


def _names(case: Case) -> list[str]:
    """What the target is called: its repository; a local folder may remember where it came from."""
    known = str(case.target.meta.config.get("_name_or_path") or "")
    label = case.target.label
    if _is_repo(label):
        return [label]
    if known and _is_repo(known):
        return [known]
    folder = base_name(label)
    return [label] if any(base_name(p.target) == folder for p in case.pairs.pairs) else []


def _trained_for(case: Case) -> list[str]:
    published = [p.target for p in case.pairs.for_draft(case.draft.label)]
    named = [case.draft.verifier] if _is_repo(case.draft.verifier) else []
    return list(dict.fromkeys(published + named))


def _is_repo(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith(("/", ".", "~")) and "://" not in name


def quantised_draft(case: Case) -> Iterator[Reason]:
    row = case.roles["quantised"]
    if (
        case.is_head
        and case.target.quantization
        and not case.draft.quantization
        and row["draft"] == "inherited"
    ):
        yield Reason(
            "spec-draft-quant-inherited",
            "quantization_config",
            case.target.quantization,
            "none",
            f"{case.roles.name} may read the plain head as {case.target.quantization}, like the target.",
            "vLLM 0.11.2 or newer, or an unquantised target.",
            case.error("quantised"),
            severity="warn",
        )


def quantised_target(case: Case) -> Iterator[Reason]:
    """A head reads hidden states: coarse weights change them."""
    bits = case.target.quant_bits
    if case.is_head and bits is not None and bits <= 4:
        yield Reason(
            "spec-low-acceptance",
            "quantization_config",
            case.target.quantization,
            "trained on the plain model",
            f"The target's weights have {bits} bits; the head was trained on the plain model's hidden states,"
            " so fewer of its guesses will be accepted.",
            "measure the acceptance (invoke bench); an 8-bit target if it is low.",
            severity="warn",
        )


def tokenizers(case: Case) -> Iterator[Reason]:
    """The same id must be the same text on both sides."""
    mine, theirs = case.target.meta.tokenizer, case.draft.meta.tokenizer
    if isinstance(mine, Missing) or isinstance(theirs, Missing) or mine.vocab_sha256 == theirs.vocab_sha256:
        return
    share = _same_share(mine.vocab, theirs.vocab)
    if share is None or share == 1:
        return
    yield Reason(
        "spec-vocab-mismatch",
        "tokenizer",
        mine.vocab_size,
        theirs.vocab_size,
        f"Only {share:.1%} of the target's tokens have the same id in the draft's tokenizer.",
        "a draft with the target's tokenizer, a head for this target, or n-gram lookup.",
        severity="refuse" if share < SAME_TOKENS and not case.is_head else "warn",
    )


def _same_share(mine: Mapping[str, int], theirs: Mapping[str, int]) -> float | None:
    if not mine or not theirs:
        return None
    return sum(theirs.get(text) == number for text, number in mine.items()) / len(mine)


RULES = (positions, family, quantised_draft, quantised_target, tokenizers)
