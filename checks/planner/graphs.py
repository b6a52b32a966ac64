"""CUDA graphs: which sizes are captured and what the captures keep.

Sources: vLLM 0.25.1 config/vllm.py (_set_cudagraph_sizes), v1/worker/gpu/cudagraph_utils.py (one pool,
piecewise then full), v1/attention/backends/flash_attn.py (with full graphs FlashAttention 3 splits each
sequence up to `flash_attn_max_num_splits_for_cuda_graph` ways and keeps fp32 partial outputs), and allocation
traces of captures on an H200.
"""

from dataclasses import dataclass

from checks.planner.shapes import Shape
from checks.planner.units import MIB
from checks.planner.work import Work

__all__ = ["Graphs", "capture_sizes", "graphs_of"]

_LIMIT = 512
_FA3_SPLITS = 32
#: Outside torch, per captured size: kernels for that many rows, loaded on first use, and the graph itself.
#: 100 MiB for 19 sizes, 320 for 51, for 28, 32 and 64 layers alike (vLLM 0.25.1, H200).
_SIZE_BYTES = 6 * MIB
#: A capture runs on its own stream: a cuBLAS workspace there, and one in the graphs' pool.
_WORKSPACES = 2
#: Copies of the widest activations that stay: of the warm-up, and of each kind of piece in the pool.
_COPIES = 5.5


@dataclass(frozen=True)
class Graphs:
    """Bytes by term. ``total`` is what the engine reports as taken."""

    sizes: tuple[int, ...]
    pool: int
    outside: int

    @property
    def total(self) -> int:
        return self.pool + self.outside


def capture_sizes(w: Work) -> tuple[int, ...]:
    """Token counts captured by default: 1, 2, 4, every 8th to 256, every 16th to the largest."""
    largest = min(w.seqs * w.query_len * 2, _LIMIT, w.batched_tokens)
    sizes = [n for n in (1, 2, 4) if n <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    sizes += range(256, largest + 1, 16)
    if w.batched_tokens <= largest:
        sizes.append(w.batched_tokens)
    return tuple(sorted(set(sizes)))


def graphs_of(w: Work) -> Graphs:
    """What capturing keeps on one rank. Empty in eager mode."""
    sizes = () if w.eager else capture_sizes(w)
    if not sizes:
        return Graphs((), 0, 0)
    largest = sizes[-1]
    pool = int(_COPIES * _widest(w.target, w.tp, largest)) + _WORKSPACES * w.workspace
    pool += _splits(w, w.target, min(largest, w.seqs * w.query_len))
    if w.draft is not None and w.reads_hidden:
        pool += _drafting(w, w.draft, min(largest, w.seqs)) + _WORKSPACES * w.workspace
    return Graphs(sizes, pool, len(sizes) * _SIZE_BYTES)


def _drafting(w: Work, head: Shape, reqs: int) -> int:
    """The head's own decode graphs hold their partial outputs and the logits of every request."""
    vocab = w.target.vocab * w.target.dtype_bytes
    return _splits(w, head, reqs) + reqs * vocab * (2 if w.method == "eagle3" else 1)


def _splits(w: Work, shape: Shape, tokens: int) -> int:
    if not w.hopper or shape.mla:
        return 0
    return tokens * _FA3_SPLITS * (shape.heads // w.tp) * shape.head_dim * 4


def _widest(shape: Shape, tp: int, n: int) -> int:
    moe = shape.moe
    inner = moe.top_k * moe.intermediate if moe is not None else shape.intermediate
    return n * 3 * inner // tp * shape.dtype_bytes
