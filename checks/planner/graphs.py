"""CUDA graphs: which sizes are captured and what the captures keep.

Sources: vLLM 0.25.1 config/vllm.py (_set_cudagraph_sizes), v1/worker/gpu/cudagraph_utils.py (one pool,
piecewise then full), v1/attention/backends/flash_attn.py (with full graphs FlashAttention 3 splits each
sequence up to `flash_attn_max_num_splits_for_cuda_graph` ways and keeps fp32 partial outputs).
"""

from dataclasses import dataclass

from checks.planner.shapes import Shape
from checks.planner.units import MIB
from checks.planner.work import Work

__all__ = ["Graphs", "capture_sizes", "graphs_of"]

_LIMIT = 512
_FA3_SPLITS = 32
#: Device memory of an instantiated graph: per kernel node, and per graph.
_NODE_BYTES = 4096
_KERNELS_PER_LAYER = 10
_GRAPH_BYTES = 2 * MIB


@dataclass(frozen=True)
class Graphs:
    """Bytes by term. ``total`` is what the engine reports as taken."""

    sizes: tuple[int, ...]
    pool: int
    nodes: int
    splits: int

    @property
    def total(self) -> int:
        return self.pool + self.nodes + self.splits


def capture_sizes(w: Work) -> tuple[int, ...]:
    """Token counts captured by default: 1, 2, 4, every 8th to 256, every 16th to the largest."""
    largest = min(w.seqs * w.query_len * 2, _LIMIT, w.batched_tokens)
    sizes = [n for n in (1, 2, 4) if n <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    sizes += range(256, largest + 1, 16)
    if w.batched_tokens <= largest:
        sizes.append(w.batched_tokens)
    return tuple(sorted(set(sizes)))


def graphs_of(w: Work, *, full: bool = True, flash_attention_3: bool = True) -> Graphs:
    """What capturing keeps on one rank. Empty in eager mode."""
    sizes = () if w.eager else capture_sizes(w)
    if not sizes:
        return Graphs((), 0, 0, 0)
    largest, count = sizes[-1], len(sizes)
    sets = 2 if full else 1
    pool = _activations(w.target, w.tp, largest)
    nodes = _nodes(w.target, count, sets)
    splits = 0
    if flash_attention_3 and full:
        heads = w.target.heads // w.tp
        splits = min(largest, w.seqs * w.query_len) * _FA3_SPLITS * heads * (w.target.head_dim + 1) * 4
    if w.draft is not None:
        pool += _activations(w.draft, w.tp, largest)
        pool += min(largest, w.seqs) * w.target.vocab * w.target.dtype_bytes
        nodes += _nodes(w.draft, count, sets + 1)
    return Graphs(sizes, pool, nodes, splits)


def _activations(shape: Shape, tp: int, n: int) -> int:
    width = 3 * (shape.intermediate // tp) + 4 * shape.hidden
    return n * width * shape.dtype_bytes


def _nodes(shape: Shape, count: int, sets: int) -> int:
    return count * sets * (_GRAPH_BYTES + shape.layers * _KERNELS_PER_LAYER * _NODE_BYTES)
