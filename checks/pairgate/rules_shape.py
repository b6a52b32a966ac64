"""Do the numbers of draft and target agree: widths, heads, vocabulary."""

from collections.abc import Iterator

from checks.modelmeta import TensorInfo
from checks.pairgate.case import Case
from checks.pairgate.model import Reason, Severity

__all__ = ["RULES"]


def hidden_size(case: Case) -> Iterator[Reason]:
    """A head reads the target's states: their width is fixed by its weights."""
    if not case.is_head:
        return
    eats = case.draft.target_hidden_size if case.method == "eagle3" else case.draft.hidden_size
    gives = case.target.hidden_size
    if eats is not None and gives is not None and eats != gives:
        yield Reason(
            "spec-hidden-size-mismatch",
            "target_hidden_size" if case.draft.number("target_hidden_size") else "hidden_size",
            gives,
            eats,
            f"The head reads hidden states {eats} wide, the target's are {gives}: it is another model's.",
            "the head that was trained for this target.",
            f"The size of tensor a ({eats}) must match the size of tensor b ({gives}) at"
            " non-singleton dimension 1",
        )


def own_embedding(case: Case) -> Iterator[Reason]:
    """An EAGLE-3 head narrower or wider than its target needs its own embedding."""
    wide, target = case.draft.hidden_size, case.target.hidden_size
    if case.method != "eagle3" or wide is None or target is None or wide == target:
        return
    if case.draft.target_hidden_size != target:
        return  # hidden_size says that already
    if not case.roles["head_input"]["own_embedding"]:
        yield _embedding(
            case, f"{case.roles.name} always shares the target's embedding", "vLLM 0.9.2 or newer."
        )
    elif case.draft.tensors and case.draft.first("embed_tokens.weight") is None:
        yield _embedding(
            case, "The head has no embed_tokens and would share the target's", "the complete head."
        )


def _embedding(case: Case, why: str, instead: str) -> Reason:
    wide, target = case.draft.hidden_size, case.target.hidden_size
    return Reason(
        "spec-hidden-size-mismatch",
        "embed_tokens",
        target,
        wide,
        f"{why}, {target} wide, but the head works at width {wide}.",
        instead,
        "hidden_states and input_embeds must have the same last dimension",
    )


def fc_width(case: Case) -> Iterator[Reason]:
    """The input of fc is what the configuration says, or the load stops there."""
    fc, wide = case.draft.fc, case.draft.hidden_size
    if not case.is_head or fc is None or wide is None or len(fc.shape) != 2:
        return
    expected = _fc_input(case)
    if expected is not None and fc.shape != (wide, expected):
        layers = f"{_aux_layers(case)} auxiliary layers x {case.draft.target_hidden_size}"
        made = layers if case.method == "eagle3" else f"embedding and hidden state, 2 x {wide}"
        yield Reason(
            "spec-hidden-size-mismatch" if fc.shape[0] != wide else "spec-weights-layout",
            "fc.weight",
            [wide, expected],
            list(fc.shape),
            f"fc.weight is {list(fc.shape)}; the configuration makes it {[wide, expected]} ({made}).",
            _fc_instead(case, fc),
            f"Tried to load weights of size torch.Size({list(fc.shape)})to a parameter of size"
            f" torch.Size({[wide, expected]})",
        )


def _aux_layers(case: Case) -> int:
    return case.draft.aux_layers if case.roles["head_input"]["aux"] == "config" else 3


def _fc_input(case: Case) -> int | None:
    if case.method == "eagle":
        return 2 * case.draft.hidden_size if case.draft.hidden_size else None
    width = case.draft.target_hidden_size
    return _aux_layers(case) * width if width and case.draft.uses_aux_states else None


def _fc_instead(case: Case, fc: TensorInfo) -> str:
    width = case.draft.target_hidden_size
    if case.method == "eagle3" and width and fc.shape[1] % width == 0:
        layers = fc.shape[1] // width
        if case.roles["head_input"]["aux"] != "config" and layers != 3:
            return f"vLLM 0.23.0 or newer: older versions read 3 layers, this head {layers}."
        return (
            f"eagle_config.eagle_aux_hidden_state_layer_ids with {layers} layers in the head's config.json."
        )
    return "a head whose config.json belongs to its weights."


def attention_shape(case: Case) -> Iterator[Reason]:
    """Head count, KV head count and head_dim against the projections."""
    dim = case.draft.head_dim
    if not case.is_head or dim is None or case.draft.uses_mla:
        return
    for tensor, field, count in (
        ("self_attn.q_proj.weight", "num_attention_heads", case.draft.heads),
        ("self_attn.k_proj.weight", "num_key_value_heads", case.draft.kv_heads),
    ):
        found = case.draft.layer0(tensor)
        if found and count and len(found.shape) == 2 and found.shape[0] != count * dim:
            yield Reason(
                "spec-weights-layout",
                f"{field} x head_dim",
                None,
                list(found.shape),
                f"{tensor} has {found.shape[0]} rows; {field} {count} x head_dim {dim} is {count * dim}.",
                f"the right head_dim or {field} in the head's config.json, or another copy of the head.",
                f"Tried to load weights of size torch.Size({list(found.shape)})to a parameter of other size",
            )
            return


def attention_input(case: Case) -> Iterator[Reason]:
    """EAGLE-3 puts embedding and state side by side before its first layer; EAGLE does not."""
    q, wide = case.draft.layer0("self_attn.q_proj.weight"), case.draft.hidden_size
    if not case.is_head or q is None or wide is None or len(q.shape) != 2:
        return
    expected = 2 * wide if case.method == "eagle3" else wide
    if q.shape[1] != expected:
        yield Reason(
            "spec-weights-layout",
            "self_attn.q_proj.weight",
            expected,
            q.shape[1],
            f"The first layer reads {q.shape[1]} inputs, a {case.method} head {wide} wide reads {expected}.",
            "the method that the head was trained for.",
        )


def vocabulary(case: Case) -> Iterator[Reason]:
    target, draft = case.target.vocab_size, case.draft.vocab_size
    if target is None or draft is None or target == draft:
        return
    other = case.roles["vocabulary"]["other_vocab"] if case.method == "draft_model" else ""
    yield Reason(
        "spec-vocab-mismatch",
        "vocab_size",
        target,
        draft,
        f"Target and draft number {target} and {draft} tokens: a draft's token ids must be the target's.",
        "a draft with the same vocab_size, a head for this target, or n-gram lookup"
        + (f"; {other} in the speculative configuration allows it at a cost." if other else "."),
        case.error("vocabulary", target=target, draft=draft) if case.method == "draft_model" else "",
    )


def draft_vocabulary(case: Case) -> Iterator[Reason]:
    """A head over part of the vocabulary needs the map back (d2t)."""
    part, whole = case.draft.draft_vocab_size, case.target.vocab_size
    if case.method != "eagle3" or part is None or whole is None or not case.draft.tensors:
        return
    d2t = case.draft.first("d2t")
    if part != whole and d2t is None:
        yield _vocab("d2t", [part], None, "There is no d2t: every drafted id would be read as another token.")
    elif d2t is not None and d2t.shape != (part,):
        yield _vocab("d2t", [part], list(d2t.shape), f"d2t maps {d2t.shape} ids, draft_vocab_size is {part}.")
    t2d = case.draft.first("t2d")
    if t2d is not None and t2d.shape != (whole,):
        yield _vocab(
            "t2d",
            [whole],
            list(t2d.shape),
            f"t2d covers {t2d.shape} tokens, the target has {whole}.",
            "warn",
        )
    yield from _lm_head(case, part, whole)


def _lm_head(case: Case, part: int, whole: int) -> Iterator[Reason]:
    head = case.draft.first("lm_head.weight")
    if head is None and part != whole:
        yield _vocab("lm_head.weight", [part], None, "The head has a vocabulary of its own but no lm_head.")
    elif head is not None and head.shape[:1] != (part,):
        yield _vocab(
            "lm_head.weight",
            [part],
            list(head.shape),
            f"lm_head is {list(head.shape)}, draft_vocab_size is {part}.",
        )


def _vocab(field: str, want: object, have: object, why: str, severity: Severity = "refuse") -> Reason:
    return Reason(
        "spec-vocab-mismatch",
        field,
        want,
        have,
        why,
        "the complete head; d2t and lm_head belong to its draft_vocab_size.",
        severity=severity,
    )


RULES = (
    hidden_size,
    own_embedding,
    fc_width,
    attention_input,
    attention_shape,
    vocabulary,
    draft_vocabulary,
)
