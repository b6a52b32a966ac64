"""A model of torch's caching allocator, so that reserved memory follows from the order of allocations.

What the device has to hold is what the allocator *reserved*, and that depends on which freed blocks a later
tensor can reuse. Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (best fit, split when more than 1 MiB
is left, merge on free, 20 MiB segments below 10 MiB, exact 2 MiB multiples above, cached segments given back
before an out-of-memory error). Tensors below 1 MiB live in a pool of their own and are left out.
"""

from dataclasses import dataclass, field

from checks.planner.units import MIB, round_up

__all__ = ["Allocator", "OutOfMemory"]

_SMALL = MIB
_MEDIUM_SEGMENT = 20 * MIB
_OWN_SEGMENT = 10 * MIB


class OutOfMemory(Exception):
    """A tensor did not fit although every cached segment was given back."""

    def __init__(self, tensor: str, nbytes: int) -> None:
        super().__init__(f"{tensor}: {nbytes} bytes")
        self.tensor = tensor
        self.nbytes = nbytes


@dataclass(eq=False, slots=True)
class _Block:
    size: int
    used: bool = False


@dataclass(eq=False, slots=True)
class _Held:
    size: int
    segment: list[_Block] | None = None
    block: _Block | None = None


@dataclass
class Allocator:
    """Named tensors in segments. ``limit``: bytes this process can get from the device, None for no limit."""

    limit: int | None = None
    segments: list[list[_Block]] = field(default_factory=list)
    reserved: int = 0
    peak_reserved: int = 0
    live: int = 0
    peak_live: int = 0
    peak_at: str = ""
    held: dict[str, _Held] = field(default_factory=dict)

    def take(self, name: str, nbytes: int) -> None:
        """Allocate a tensor under a name that nothing holds at this moment."""
        held = _Held(round_up(max(nbytes, 1), 512))
        if held.size >= _SMALL:
            held.segment, held.block = self._best_fit(held.size) or self._segment(name, held.size)
            self._split(held.segment, held.block, held.size)
        self.held[name] = held
        self.live += held.size
        if self.live > self.peak_live:
            self.peak_live, self.peak_at = self.live, name

    def drop(self, *names: str) -> None:
        """Free tensors; a name that is not held is ignored, like a variable that was never bound."""
        for name in names:
            held = self.held.pop(name, None)
            if held is None:
                continue
            self.live -= held.size
            if held.segment is not None and held.block is not None:
                _merge(held.segment, held.block)

    def rename(self, old: str, new: str) -> None:
        """Bind a held tensor to another name, freeing what that name held."""
        held = self.held.pop(old)
        self.drop(new)
        self.held[new] = held

    def replace(self, name: str, nbytes: int) -> None:
        """``x = f(x)``: the new tensor exists before the old one goes."""
        self.take(f"{name} (new)", nbytes)
        self.rename(f"{name} (new)", name)

    def empty_cache(self) -> None:
        """Give every wholly free segment back to the device."""
        self.segments = [s for s in self.segments if any(b.used for b in s)]
        self.reserved = sum(b.size for s in self.segments for b in s)

    def _best_fit(self, size: int) -> tuple[list[_Block], _Block] | None:
        best: tuple[list[_Block], _Block] | None = None
        for segment in self.segments:
            for block in segment:
                if not block.used and block.size >= size and (best is None or block.size < best[1].size):
                    best = segment, block
        return best

    def _segment(self, name: str, size: int) -> tuple[list[_Block], _Block]:
        wanted = _MEDIUM_SEGMENT if size < _OWN_SEGMENT else round_up(size, 2 * MIB)
        if self.limit is not None and self.reserved + wanted > self.limit:
            self.empty_cache()
            if self.reserved + wanted > self.limit:
                raise OutOfMemory(name, size)
        block = _Block(wanted)
        self.segments.append([block])
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return self.segments[-1], block

    @staticmethod
    def _split(segment: list[_Block], block: _Block, size: int) -> None:
        block.used = True
        rest = block.size - size
        if rest > _SMALL:
            block.size = size
            segment.insert(segment.index(block) + 1, _Block(rest))


def _merge(segment: list[_Block], block: _Block) -> None:
    block.used = False
    at = segment.index(block)
    if at + 1 < len(segment) and not segment[at + 1].used:
        block.size += segment.pop(at + 1).size
    if at > 0 and not segment[at - 1].used:
        block.size += segment.pop(at - 1).size
