"""How many tokens to guess, in the other engine's numbers: a chain, or steps, top-k and tree size."""

from inventory.model import METHODS_WITH_MODEL
from inventory.roles import tree_size
from inventory.work import Work

__all__ = ["take_counts"]

#: Tokens when a command names a method and no number.
USUAL_TOKENS = 5


def take_counts(work: Work, method: str) -> None:
    from_tree = any(r in work.roles for r in ("draft_steps", "draft_topk", "draft_tokens"))
    to_tree = "draft_steps" in work.release.flags
    work.settled |= {"num_speculative_tokens", "draft_steps", "draft_topk", "draft_tokens"}
    if to_tree and method != "ngram":
        _to_tree(work, from_tree=from_tree)
    else:
        _to_chain(work, method, from_tree=from_tree)


def _to_chain(work: Work, method: str, *, from_tree: bool) -> None:
    """A number of tokens in a row (and, for n-gram on either engine, how many to guess)."""
    tokens = work.number("num_speculative_tokens")
    if from_tree:
        tokens = _from_tree(work, method)
    if tokens is None and method in METHODS_WITH_MODEL | {"ngram"}:
        tokens = _unsaid_steps(work) if method != "ngram" else USUAL_TOKENS
        work.note("other", "num_speculative_tokens", f"the command names no number: {tokens} is written out")
    if tokens is not None:
        work.draft["num_speculative_tokens"] = tokens
    flag = work.release.flags.get("num_speculative_tokens")
    if not from_tree and flag and "num_speculative_tokens" in work.seen:
        given = work.flag("num_speculative_tokens")
        if not work.release.spells("num_speculative_tokens", given):
            work.note("renamed", given, f"now {flag.where}")
    elif "num_speculative_tokens" in work.seen:
        name = work.release.flags["draft_tokens"].flag
        work.note("renamed", work.flag("num_speculative_tokens"), f"now {name}, which counts the root too")


def _from_tree(work: Work, method: str) -> int | None:
    steps, topk, size = (work.number(r) for r in ("draft_steps", "draft_topk", "draft_tokens"))
    if method == "ngram":
        return size - 1 if size else None
    if topk and topk > 1 and "draft_topk" in work.seen:
        text = f"{work.here} drafts a chain, not a tree of {topk} branches: {steps or 'the'} steps are kept"
        work.note("removed", work.flag("draft_topk"), text)
    elif "draft_topk" in work.seen:
        work.note("no-effect", work.flag("draft_topk"), "a chain is what is drafted anyway")
    if "draft_tokens" in work.seen:
        work.note(
            "removed", work.flag("draft_tokens"), "the size of a tree; a chain has as many as it has steps"
        )
    if "draft_steps" in work.seen:
        work.note("renamed", work.flag("draft_steps"), "now num_speculative_tokens: one token a step")
    return steps or (size - 1 if size and topk in {None, 1} else None)


def _unsaid_steps(work: Work) -> int:
    """SGLang's own number of steps for this target, where the command left all three out."""
    family = str(work.roles["model"]).lower()
    rows = work.source.tree
    return next((t.steps for t in rows if t.family is None or t.family in family), USUAL_TOKENS)


def _to_tree(work: Work, *, from_tree: bool) -> None:
    steps, topk, size = (work.number(r) for r in ("draft_steps", "draft_topk", "draft_tokens"))
    if not from_tree:
        steps, topk = work.number("num_speculative_tokens"), 1
        if steps is None:
            return
        given = work.flag("num_speculative_tokens")
        names = [work.release.flags[r].flag for r in ("draft_steps", "draft_topk", "draft_tokens")]
        text = (
            f"a chain of {steps} is {names[0]} {steps} {names[1]} 1 {names[2]} {steps + 1} (the root counts)"
        )
        work.note("renamed", given, text)
    topk = topk or 1
    if steps is None:
        steps = size - 1 if size and topk == 1 else _unsaid_steps(work)
        flag = work.release.flags["draft_steps"].flag
        work.note(
            "other", flag, f"top-k or draft tokens without steps trip an assert: {steps} is written out"
        )
    work.draft |= {"num_steps": steps, "topk": topk, "num_speculative_tokens": _size(work, steps, topk, size)}


def _size(work: Work, steps: int, topk: int, size: int | None) -> int:
    flag = work.release.flags["draft_tokens"].flag
    if topk == 1:
        if size not in {None, steps + 1}:
            work.note("no-effect", flag, f"with top-k 1 the engine takes steps + 1 = {steps + 1}, not {size}")
        return steps + 1
    largest = 1 + topk + (steps - 1) * topk * topk
    if size is None:
        usual = tree_size(work.release, steps, topk)
        size = min(usual or 1 + steps + topk // 2, largest)
        source = "the engine's own for these" if usual else "our choice"
        work.note("other", flag, f"unsaid with top-k {topk} it stays unset: {size} is written out ({source})")
    elif size > largest:
        work.note("no-effect", flag, f"{steps} steps of top-k {topk} give a tree of {largest} at most")
    return min(size, largest)
