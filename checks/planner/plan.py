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
from checks.planner.result import Plan, Stop, Term
from checks.planner.scenario import Scenario
from checks.planner.units import GIB, MIB, allocated, gib
from checks.planner.work import Work

__all__ = ["Plan", "Stop", "Term", "layout", "plan", "uses_v2"]

#: Architectures of the second runner although they are mixtures (vLLM 0.25.1 config/vllm.py:68).
_V2_MOE = frozenset({"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"})
_V2_METHODS = frozenset({"none", "eagle", "eagle3", "mtp"})


def uses_v2(s: Scenario, w: Work) -> bool:
    """True when this start runs on the second model runner."""
    dense = not w.target.is_moe or w.target.architecture in _V2_MOE
    hybrid = "state" in w.target.layer_kinds
    return s.rules.model_runner_v2 and s.method in _V2_METHODS and dense and not hybrid


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
            [] if s.rules.measured else [f"no start of {s.engine} {s.version} was measured"]
        )
        self._add("CUDA context, NCCL", self.outside, GIB // 8, self.context.source)

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

    def _add(self, name: str, nbytes: int, band: int, source: str) -> None:
        if nbytes > 0:
            self.terms.append(Term(name, nbytes, band, source))

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
            self._add(name, size, size // 100, "parameters, fused and rounded as the engine allocates them")
        self.weights = target + draft
        return None

    def _hold(self) -> Stop | None:
        buffers = (runner_v2 if self.v2 else runner_v1).held(self.w)
        self.held = sum(allocated(n) for n in buffers.values())
        largest = max(buffers, key=lambda name: buffers[name])
        self._add(
            "runner buffers", self.held, self.held // 20, f"largest: {largest}, {gib(buffers[largest])} GiB"
        )
        self._add("kernels, handles", self.context.growth(self.w.tp), GIB // 8, self.context.source)
        return None

    def _profile(self) -> Stop | None:
        a = Allocator(limit=self._room)
        try:
            a.take("workspace", self.context.workspace_mib * MIB)
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
        estimated = rules.v2_graph_estimate if self.v2 else rules.graph_estimate_subtracted
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
        self._add("KV cache", used, used * 3 // 100, f"{self.layout.bytes_per_block} bytes a block")
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
            graphs.total // 3,
            f"{len(graphs.sizes)} sizes to {max(graphs.sizes, default=0)}",
        )
        return None

    def _warm_up(self) -> Stop | None:
        blocks = self.layout.blocks(self.available or 0)
        a = Allocator(limit=self._room)
        run = runner_v2.warm_up if self.v2 else runner_v1.warm_up
        try:
            a.take("workspace", self.context.workspace_mib * MIB)
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
        return (
            "oom-sampler-warmup"
            if tensor in {"fp32", "logits", "probs", "noise", "top-k rows"}
            else "oom-weights-load"
        )

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
            band=int(sum(t.band**2 for t in self.terms) ** 0.5),
            stop=stop,
            notes=tuple(self.notes),
        )
