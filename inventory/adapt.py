"""Speculation from one dialect to another: which draft a command means, and how it is said elsewhere.

Three dialects: vLLM's old flags (the kind is guessed from the name), its JSON (a chain of tokens), and
SGLang's steps, top-k and tree size.
"""

from typing import Any, get_args

from pydantic import JsonValue

from inventory.counts import take_counts
from inventory.model import METHODS_WITH_MODEL, Method
from inventory.pairs import Pairs, load_pairs
from inventory.roles import BatchSchedule
from inventory.work import Work

__all__ = ["adapt_draft"]

METHODS: frozenset[str] = frozenset(get_args(Method))


def adapt_draft(work: Work) -> None:
    """Fill ``work.draft`` for the release wanted; every change is noted."""
    method = _method(work)
    if method is None:
        return
    model = work.roles.get("draft_model")
    model = str(model) if model and method in METHODS_WITH_MODEL else None
    method, model = _existing(work, load_pairs(), method, model)
    method, model = _sayable(work, method, model)
    if method == "none":
        return
    work.draft["method"] = method
    _name_note(work, method, model)
    if model:
        work.draft["model"] = _reference(model, work.roles.get("draft_revision"))
    take_counts(work, method)
    _window(work, method)
    _tensor_parallel(work, method)
    _batch_limit(work)
    _extra(work)


# --- which method -----------------------------------------------------------------------------------------


def _method(work: Work) -> str | None:
    """The method meant, by its own name here ("eagle3"); None without speculation."""
    said, model = work.roles.get("draft_method"), work.roles.get("draft_model")
    if isinstance(said, str):
        return _by_value(work, said)
    if model in {"[ngram]", "ngram"}:
        return "ngram"
    if isinstance(model, str):
        return _by_name(work, model)
    if work.number("num_speculative_tokens"):
        work.note(
            "other", work.flag("num_speculative_tokens"), "no draft is named: the target's own heads (mtp)"
        )
        return "mtp"
    return None


def _by_value(work: Work, said: str) -> str:
    rows = [m for m in work.source.method if m.value and m.value.lower() == said.lower()]
    if rows:
        return rows[0].name
    if said in METHODS:
        return said
    if said.endswith("_mtp"):
        work.note("renamed", said, "one method mtp for every family")
        return "mtp"
    work.drop("draft_method", "removed", f"eyas knows no draft method {said}: speculation is left off")
    return "none"


def _by_name(work: Work, model: str) -> str:
    name = model.lower()
    pairs = load_pairs().for_draft(model)
    known = next((p.method for p in pairs if p.method in METHODS), None)
    method = known or ("eagle3" if "eagle3" in name else "eagle" if "eagle" in name else "draft_model")
    if "draft_method" in work.release.flags and not load_pairs().missing(model):
        why = "its pair is catalogued" if known else "by its name"
        work.note("other", work.flag("draft_model"), f"{model} is taken as {method} ({why}); now written out")
    return method


def _existing(work: Work, pairs: Pairs, method: str, model: str | None) -> tuple[str, str | None]:
    """Replace a head nobody published by one that fits the target, or by a method without a head."""
    if model is None:
        return method, None
    target = str(work.roles["model"])
    absent = pairs.missing(model)
    if absent is None:
        return _of_its_kind(work, pairs, method, model), model
    fitting = [p for p in pairs.for_target(target, work.release.engine) if p.method in METHODS]
    best = next((p for f in absent.fits for p in fitting if p.draft == f), next(iter(fitting), None))
    if best:
        if "draft_method" in work.seen and best.method != method:
            work.note(
                "other", work.flag("draft_method"), f"{best.draft} is an {best.method} head, not {method}"
            )
        text = f"{model} is not on the hub; taken instead: {best.draft} (method {best.method}). {absent.text}"
        work.note("missing-repo", work.flag("draft_model"), text)
        return best.method, best.draft
    text = f"{model} is not on the hub; taken instead: {absent.fallback}. {absent.text}"
    work.note("missing-repo", work.flag("draft_model"), text)
    window = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    if not window.keys() & work.roles.keys():
        work.draft |= {r: n for r, n in window.items() if r in work.release.flags}
    return "ngram", None


def _of_its_kind(work: Work, pairs: Pairs, method: str, model: str) -> str:
    """The published method of a known head; and a word when it was trained for another target."""
    rows = pairs.for_draft(model)
    if not rows:
        return method
    target = str(work.roles["model"])
    if not any(pairs.same_model(r.target, target) for r in rows):
        work.note(
            "other", model, f"this head was trained for {rows[0].target}, not {target}: few guesses will hold"
        )
    published = rows[0].method
    if published in METHODS and method not in {published, "draft_model"}:
        work.note("other", work.flag("draft_method"), f"{model} is an {published} head, not {method}")
        return published
    return method


def _name_note(work: Work, method: str, model: str | None) -> None:
    """Where the flag that named the draft went, when what it named is no model here."""
    if model is not None or "draft_model" not in work.seen:
        return
    work.settled.add("draft_model")
    flag = work.release.flags.get("draft_method")
    value = work.release.methods[method].value  # type: ignore[index]
    if flag and value:
        work.note("renamed", work.flag("draft_model"), f"now {flag.where}: {value}")


def _sayable(work: Work, method: str, model: str | None) -> tuple[str, str | None]:
    """A method this release lacks falls back to n-gram, or to none, with a note."""
    if method in work.release.methods:
        return method, model
    fallback = "ngram" if "ngram" in work.release.methods and method != "none" else "none"
    if method != "none":
        work.note("removed", method, f"{work.here} has no {method} drafting; taken instead: {fallback}")
    return fallback, None


def _reference(model: str, revision: JsonValue) -> dict[str, Any]:
    if model.startswith(("/", "./", "../", "~")):
        return {"path": model}
    return {"repo": model} | ({"revision": revision} if revision else {})


# --- the rest ---------------------------------------------------------------------------------------------


def _window(work: Work, method: str) -> None:
    for role in ("prompt_lookup_max", "prompt_lookup_min"):
        value = work.number(role)
        if value is None:
            continue
        if method != "ngram":
            work.drop(role, "no-effect", f"means nothing for method {method}")
        elif role not in work.release.flags:
            work.drop(role, "removed", f"{work.here} matches by its own trie")
        else:
            work.draft[role] = value


def _tensor_parallel(work: Work, method: str) -> None:
    role = "draft_tensor_parallel"
    given = work.number(role)
    if given is None:
        return
    target = work.number("tensor_parallel") or 1
    rule = work.release.draft_tp_rule(method)  # type: ignore[arg-type]
    if role not in work.release.flags:
        work.drop(role, "removed", f"{work.here} shards the draft over the target's {target} ranks")
    elif method not in METHODS_WITH_MODEL:
        work.drop(role, "no-effect", f"method {method} loads no model")
    elif rule is not None and rule.rule == "ignored":
        work.drop(role, "no-effect", f"{rule.text} ({work.here})")
    elif rule is not None and given not in {"one": {1}, "equal": {target}}.get(rule.rule, {1, target}):
        work.draft["tensor_parallel"] = target
        work.drop(role, "other", f"{rule.text}: {target}, not {given}")
    else:
        work.draft["tensor_parallel"] = given


def _batch_limit(work: Work) -> None:
    limit = work.number("disable_above_batch")
    schedule = work.roles.get("tokens_per_batch_size")
    read = BatchSchedule.read(schedule)
    role = "disable_above_batch" if limit else "tokens_per_batch_size"
    if limit is None and read:
        limit = read[0]
    if limit is None and schedule is None:
        return
    work.settled |= {"disable_above_batch", "tokens_per_batch_size"}
    flags = work.release.flags
    if limit is None and "tokens_per_batch_size" in flags:
        work.draft.setdefault("extra", {})[flags["tokens_per_batch_size"].key] = schedule
    elif limit is not None and "tokens_per_batch_size" in flags:
        work.draft["max_batch_size"] = limit
        if role == "disable_above_batch":
            text = f"now {flags['tokens_per_batch_size'].key}: full drafts up to {limit} requests, none above"
            work.note("renamed", work.flag(role), text)
    elif limit is not None and "disable_above_batch" in flags:
        work.draft["max_batch_size"] = limit
    else:
        work.note(
            "removed", work.flag(role), f"{work.here} can't switch speculation by the batch: it stays on"
        )


def _extra(work: Work) -> None:
    """Other keys of the JSON: kept where the release takes them."""
    for key, value in work.extra.items():
        gone = next((k for k in work.release.retired_keys if k.key == key), None)
        if work.release.json_flag is None:
            work.note("removed", key, f"{work.here} has no such setting")
        elif gone and gone.becomes:
            work.note("renamed", key, gone.text)
        elif gone:
            work.note(gone.kind, key, gone.text)
        else:
            work.draft.setdefault("extra", {})[key] = value
