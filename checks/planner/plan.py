"""The plan of one start: every term in the order in which the engine takes memory, and whether it starts.

`plan` walks the start as the engine does: refusals, first look at free memory, weights, buffers, profile run,
KV cache, graphs, warm-up. Each stage either fits the device or ends the walk with the public cause.
"""

from collections.abc import Callable

from checks.planner import runner_v1, runner_v2, sglang
from checks.planner.allocator import Allocator, OutOfMemory
from checks.planner.engines import context
from checks.planner.gates import refusals
from checks.planner.graphs import Graphs, graphs_of
from checks.planner.kv import KvLayout, layout_of
from checks.planner.loading import loaded
from checks.planner.result import Plan, Stop, Term, band_of
from checks.planner.scenario import Scenario
from checks.planner.units import GIB, allocated, gib
from checks.planner.work import Work

__all__ = ["Plan", "Stop", "Term", "layout", "plan", "uses_v2"]

#: Tensors of the sampler, whose size follows the sequences.
_SAMPLING = frozenset({"fp32", "logits", "gathered", "local", "masked", "probs", "noise", "top-k rows"})
_PARAMETERS = "parameters, fused and rounded as the engine allocates them"


def uses_v2(s: Scenario, w: Work) -> bool:
    """True when this start runs on the second model runner."""
    return s.rules.runs_v2(
        architecture=w.target.architecture,
        moe=w.target.is_moe,
        hybrid="state" in w.target.layer_kinds,
        method=s.method,
    )


def layout(w: Work) -> KvLayout:
    """The KV layout of target and draft on one rank."""
    return layout_of(
        w.target,
        w.draft,
        tp=w.tp,
        kv_dtype=w.kv_dtype,
        block_size=w.block_size,
        batched_tokens=w.batched_tokens,
    )


def plan(s: Scenario) -> Plan:
    """Plan one start. Raises InventoryError when the scenario lacks what the formulas need."""
    w = s.work()
    if s.engine == "sglang":
        return sglang.plan(s, w)
    refused = next(refusals(s, w), None)
    if refused is not None and refused.slug != "spec-hidden-size-mismatch":
        return _Walk(s, w).stopped(Stop("configuration", refused.slug, refused.text))
    walk = _Walk(s, w)
    return walk.run(refused.text if refused else "")


class _Walk:
    """The state of one start: what is taken so far, and the plan that follows from it."""

    def __init__(self, s: Scenario, w: Work) -> None:
        self.s, self.w = s, w
        self.v2 = uses_v2(s, w)
        self.context = context()
        self.outside = self.context.at_start(w.tp)
        self.terms: list[Term] = []
        self.weights: int | None = None
        self.available: int | None = None
        self.layout = layout(w)
        self.held = 0
        self.notes: list[str] = (
            [] if s.rules.measured else [f"no start of {s.engine} {s.release.version} was measured"]
        )
        self._add("CUDA context, NCCL", self.outside, self._outside_band, self.context.source)

    def run(self, mismatch: str) -> Plan:
        """Stage after stage, until one stops."""
        stages: tuple[Callable[[], Stop | None], ...] = (
            self._first_look,
            self._load,
            self._hold,
            lambda: Stop("profile", "spec-hidden-size-mismatch", mismatch) if mismatch else None,
            self._profile,
            self._cache,
            self._capture,
            self._warm_up,
        )
        for stage in stages:
            stop = stage()
            if stop is not None:
                return self.stopped(stop)
        return self._plan(None)

    def stopped(self, stop: Stop) -> Plan:
        return self._plan(stop)

    # -- stages

    @property
    def _taken(self) -> int:
        return sum(t.nbytes for t in self.terms) + self.s.other_used

    @property
    def _room(self) -> int:
        return self.s.device_total - self._taken

    @property
    def _outside_band(self) -> int:
        """NCCL's share follows the links between the cards; only two NVLink cards were measured."""
        return GIB // 8 if self.w.tp == 1 else GIB // 2

    def _add(self, name: str, nbytes: int, band: int, source: str, *, budgeted: bool = False) -> None:
        if nbytes > 0:
            self.terms.append(Term(name, nbytes, band, source, budgeted=budgeted))

    def _first_look(self) -> Stop | None:
        wanted = int(self.s.device_total * self.s.used_utilization())
        if self._room >= wanted:
            return None
        text = f"{gib(self._room)} GiB free at start, {gib(wanted)} GiB asked for by utilization"
        return Stop("first look", "gpu-memory-occupied", text)

    def _load(self) -> Stop | None:
        target, draft, passing = loaded(self.s, self.w)
        for name, size, extra, slug in (
            ("target weights", target, 0, "oom-weights-load"),
            ("draft weights", draft, passing, "oom-spec-draft"),
        ):
            if size + extra > self._room:
                return Stop("load", slug, f"{name} {gib(size + extra)} GiB, {gib(self._room)} GiB free")
            self._add(name, size, size // 100, _PARAMETERS, budgeted=True)
        self.weights = target + draft
        return None

    def _hold(self) -> Stop | None:
        buffers = (runner_v2 if self.v2 else runner_v1).held(self.w)
        self.held = sum(allocated(n) for n in buffers.values())
        largest = max(buffers, key=lambda name: buffers[name])
        self._add(
            "runner buffers", self.held, self.held // 20, f"largest: {largest}, {gib(buffers[largest])} GiB"
        )
        self._add("kernels, handles", self.context.growth(self.w.tp), self._outside_band, self.context.source)
        return None

    def _profile(self) -> Stop | None:
        a = Allocator(limit=self._room)
        try:
            (runner_v2 if self.v2 else runner_v1).profile(a, self.w)
        except OutOfMemory as e:
            return Stop(
                "profile", self._blame(e.tensor), f"{e.tensor}, {gib(e.nbytes)} GiB, in the profile run"
            )
        self.activations = a.peak_live
        self.graphs = graphs_of(self.w)
        self.available = self.s.kv_bytes or self._budget()
        return None

    def _budget(self) -> int:
        """What is left of the utilisation for KV, as this version counts."""
        rules = self.s.rules
        counted = (self.weights or 0) + self.activations + self.context.growth(self.w.tp)
        if rules.held_counted:
            counted += self.held
        estimated = self.s.graphs_budgeted and (rules.v2_graph_estimate or not self.v2)
        if estimated:
            counted += self.graphs.total
        return int(self.s.device_total * self.s.used_utilization()) - counted

    def _cache(self) -> Stop | None:
        available = self.available or 0
        if available <= 0:
            text = f"weights and activations exceed the budget by {gib(-available)} GiB"
            return Stop("KV cache", "kv-cache-no-memory", text)
        length = self._length()
        needed = self.layout.needed(length)
        if needed > available or length == 0:
            longest = self.layout.longest(available, self.w.max_len)
            text = f"{length} tokens need {gib(needed)} GiB, {gib(available)} GiB there; {longest} would fit"
            return Stop("KV cache", "kv-cache-too-small", text)
        used = self.layout.blocks(available) * self.layout.bytes_per_block
        if used > self._room:
            text = f"{gib(used)} GiB of KV cache, {gib(self._room)} GiB free"
            return Stop("KV cache", "kv-cache-no-memory", text)
        self._add(
            "KV cache", used, used * 3 // 100, f"{self.layout.bytes_per_block} bytes a block", budgeted=True
        )
        return None

    def _length(self) -> int:
        if not self.s.auto_len:
            return self.w.max_len
        return self.layout.longest(self.available or 0, self.w.max_len)

    def _capture(self) -> Stop | None:
        graphs: Graphs = self.graphs
        if graphs.total > self._room:
            text = f"{len(graphs.sizes)} sizes need {gib(graphs.total)} GiB, {gib(self._room)} GiB free"
            return Stop("graph capture", "oom-cuda-graph-capture", text)
        self._add(
            "CUDA graphs",
            graphs.total,
            graphs.total // 4,
            f"{len(graphs.sizes)} sizes to {max(graphs.sizes, default=0)}",
        )
        return None

    def _warm_up(self) -> Stop | None:
        blocks = self.layout.blocks(self.available or 0)
        a = Allocator(limit=self._room)
        run = runner_v2.warm_up if self.v2 else runner_v1.warm_up
        try:
            run(a, self.w, blocks)
        except OutOfMemory as e:
            text = f"{e.tensor}, {gib(e.nbytes)} GiB, in the warm-up of {self.w.seqs} sequences"
            return Stop("warm-up", self._blame(e.tensor), text)
        self._add(
            "sampler and draft warm-up", a.reserved, GIB // 3, "reserved by the allocator, in order of use"
        )
        return None

    def _blame(self, tensor: str) -> str:
        """Speculation, when the tensor is the draft's or the rows are multiplied by drafts."""
        drafted = self.w.method != "none" and (tensor.startswith(("d.", "draft", "joined")) or self.w.k > 0)
        if drafted:
            return "oom-spec-draft"
        return "oom-sampler-warmup" if tensor in _SAMPLING else "oom-weights-load"

    # -- result

    def _plan(self, stop: Stop | None) -> Plan:
        available = self.available if self.available is not None else None
        length = self._length() if available is not None else self.w.max_len
        known = available is not None and available > 0
        reached = stop is None
        return Plan(
            scenario=self.s,
            terms=tuple(self.terms),
            weights=self.weights,
            available_kv=available,
            kv_tokens=self.layout.tokens(available or 0, length) if known and length else None,
            concurrency=self.layout.concurrency(available or 0, length) if known and length else None,
            max_len=length,
            longest=self.layout.longest(available or 0, self.w.max_len) if known else None,
            device_peak=sum(t.nbytes for t in self.terms) if reached else None,
            band=band_of(self.terms),
            stop=stop,
            notes=tuple(self.notes),
        )
