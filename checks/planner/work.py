"""One start to be planned, with every default resolved: the input of all memory terms."""

from dataclasses import dataclass

from checks.planner.quant import Scheme
from checks.planner.shapes import Shape

__all__ = ["Work"]


@dataclass(frozen=True)
class Work:
    """Sizes in tokens, sequences and bytes. ``method`` "none" serves the target alone.

    ``hopper``: compute capability 9.0, which gets kernels of its own (FlashAttention 3, Machete).
    """

    target: Shape
    draft: Shape | None
    scheme: Scheme | None
    draft_scheme: Scheme | None
    method: str
    k: int
    tp: int
    seqs: int
    batched_tokens: int
    max_len: int
    block_size: int
    kv_dtype: str
    eager: bool
    probabilistic: bool
    own_head: bool
    own_embed: bool
    flashinfer_sampler: bool
    compute_units: int
    cold_compile: bool
    hopper: bool
    workspace: int

    @property
    def query_len(self) -> int:
        """Tokens one decoding request has in a step: its drafts and the one it is sure of."""
        return 1 + (self.k if self.method != "none" else 0)

    @property
    def profile_reqs(self) -> int:
        return min(self.seqs, self.batched_tokens)

    @property
    def reads_hidden(self) -> bool:
        """True when the draft is a head on the target's hidden states."""
        return self.draft is not None and self.method in {"eagle", "eagle3", "mtp"}
