"""KV cache: bytes per block over target and draft layers, and how many tokens fit.

Sources: vLLM 0.25.1 v1/kv_cache_interface.py (page sizes), v1/core/kv_cache_utils.py (groups, capacity,
fit check), v1/attention/backends/flash_attn.py.
"""

from dataclasses import dataclass

from checks.planner.shapes import Shape
from checks.planner.units import cdiv

__all__ = ["Group", "KvLayout", "layout_of"]

KV_DTYPE_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1, "float32": 4}


@dataclass(frozen=True)
class Group:
    """Layers that share one block table. ``window``: tokens kept per request, None for all."""

    layers: int
    page_bytes: int
    window: int | None


@dataclass(frozen=True)
class KvLayout:
    """How a block is laid out. ``tensors`` sizes of one block in each allocated tensor."""

    block_size: int
    groups: tuple[Group, ...]
    batched_tokens: int
    state_bytes: int = 0

    @property
    def bytes_per_block(self) -> int:
        """One block id costs the largest group's pages: groups of unequal length are padded to it."""
        return max((g.layers * g.page_bytes for g in self.groups), default=0)

    @property
    def bytes_per_token(self) -> float:
        """Of a request that grows: window groups stop growing."""
        return sum(g.layers * g.page_bytes for g in self.groups if g.window is None) / self.block_size

    def blocks(self, available: int) -> int:
        return max(0, available) // self.bytes_per_block if self.bytes_per_block else 0

    def blocks_per_request(self, length: int) -> int:
        """Block ids one request of ``length`` tokens takes, over all groups."""
        return sum(self._group_blocks(g, length) for g in self.groups)

    def _group_blocks(self, group: Group, length: int) -> int:
        if group.window is None:
            return cdiv(length, self.block_size)
        kept = min(length, group.window - 1 + self.batched_tokens)
        return cdiv(kept, self.block_size) + 1

    def needed(self, length: int) -> int:
        """Bytes that one request of ``length`` tokens needs."""
        return self.blocks_per_request(length) * self.bytes_per_block

    def concurrency(self, available: int, length: int) -> float:
        per_request = self.blocks_per_request(length)
        return self.blocks(available) / per_request if per_request else 0.0

    def tokens(self, available: int, length: int) -> int:
        """Capacity as the engine prints it: concurrency at ``length`` times ``length``."""
        return int(self.concurrency(available, length) * length)

    def longest(self, available: int, limit: int) -> int:
        """The largest length up to ``limit`` of which one request fits; 0 if none does."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.needed(middle) <= available:
                low = middle
            else:
                high = middle - 1
        return low


def layout_of(
    target: Shape,
    draft: Shape | None,
    *,
    tp: int,
    kv_dtype: str,
    block_size: int,
    batched_tokens: int,
    draft_shares: bool = False,
) -> KvLayout:
    """The layout of target and draft layers on one rank of ``tp``."""
    counts: dict[tuple[int, int | None], int] = {}
    for shape in (target, draft):
        if shape is None or (shape is draft and draft_shares):
            continue
        page = _page_bytes(shape, tp, kv_dtype, block_size)
        for kind in shape.layer_kinds:
            if kind != "state":
                key = (page, shape.window if kind == "window" else None)
                counts[key] = counts.get(key, 0) + 1
    return KvLayout(block_size, _groups(counts), batched_tokens)


def _page_bytes(shape: Shape, tp: int, kv_dtype: str, block_size: int) -> int:
    width = KV_DTYPE_BYTES.get(kv_dtype, shape.dtype_bytes)
    if shape.mla:
        return block_size * (shape.mla.kv_rank + shape.mla.rope_dim) * width
    return block_size * 2 * max(1, shape.kv_heads // tp) * shape.head_dim * width


def _groups(counts: dict[tuple[int, int | None], int]) -> tuple[Group, ...]:
    """Layers of one kind form one group; kinds are cut into groups of equal layer count.

    The engine takes the smallest kind's count as the group size (unless the largest is under 1.5 times it)
    and pads the last group of each kind.
    """
    windows = {window for _page, window in counts}
    if len(windows) <= 1:
        pages = sum(page * n for (page, _w), n in counts.items())
        window = next(iter(windows), None)
        return (Group(1, pages, window),) if pages else ()
    smallest, largest = min(counts.values()), max(counts.values())
    size = largest if largest < 1.5 * smallest else smallest
    page = max(page for page, _w in counts)
    return tuple(
        Group(size, page, window) for (_page, window), n in counts.items() for _ in range(cdiv(n, size))
    )
