"""Greedy output with speculation against the run without: the same, or where it first differs and why."""

from collections.abc import Sequence

from checks.bench.model import Losslessness

__all__ = ["compare_outputs"]

_SHOWN = 40


def compare_outputs(
    plain: Sequence[str],
    drafted: Sequence[str],
    *,
    plain_in_batch: Sequence[str] = (),
    dtype: str | None = None,
    workload: str = "",
) -> Losslessness:
    """The i-th of each answers the same prompt, asked alone; ``plain_in_batch``: asked all at once."""
    pairs = list(zip(plain, drafted, strict=True))
    differing = [n for n, (a, b) in enumerate(pairs) if a != b]
    if not pairs:
        return Losslessness(same=None, why="no prompt was compared")
    if not differing:
        return Losslessness(same=True, compared=len(pairs))
    first = min(differing, key=lambda n: _same(*pairs[n]))
    at = _same(*pairs[first])
    a, b = pairs[first]
    batch = sum(x != y for x, y in zip(plain, plain_in_batch, strict=False))
    return Losslessness(
        same=False,
        compared=len(pairs),
        differing=len(differing),
        workload=workload,
        at=at,
        expected=a[at : at + _SHOWN],
        got=b[at : at + _SHOWN],
        why=_why(at, len(differing), len(pairs), batch, dtype),
    )


def _why(at: int, differing: int, compared: int, batch: int, dtype: str | None) -> str:
    if at == 0 and differing == compared:
        return "every answer differs from its first character on: this is no rounding, see `invoke doctor`"
    if batch:
        return (
            f"batch-dependent numerics: without speculation {batch} of {compared} answers change as well when"
            " they are asked all at once, because sums in a larger batch round differently"
        )
    if dtype == "float32":
        return "at float32 rounding hardly ever turns a choice: this is worth a look, see `invoke doctor`"
    return (
        "batch-dependent numerics are likely: a verification step computes several positions at once, and at"
        f" {dtype or 'half precision'} two nearly equal choices can swap; the target alone showed none of it"
    )


def _same(a: str, b: str) -> int:
    """Characters before the first difference."""
    shorter = min(len(a), len(b))
    return next((n for n in range(shorter) if a[n] != b[n]), shorter)
