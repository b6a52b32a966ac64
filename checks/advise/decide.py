"""The decision: what holds without speculation, what each draft would give there, and the best that fits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from checks.advise.data import Curve, load_data
from checks.advise.gain import MARGIN, Estimate, estimate, stretch
from checks.advise.own import Acceptance, Measured, acceptance_of, measured_of
from checks.advise.question import Answer, Line, Question
from checks.advise.sizing import Sized, bits_of, size
from checks.bench.model import BenchResult
from checks.modelmeta import ModelMeta
from checks.pairgate import PairWant, check_pair
from checks.pairgate.catalogue import roles_of
from checks.pairgate.gate import alternatives
from checks.planner.units import gib
from inventory.catalogue import load_catalogue
from inventory.errors import CheckRefused, EyasError
from inventory.model import Deployment, Draft, EngineName, ModelRef
from inventory.pairs import load_pairs

__all__ = ["advise"]

#: Reads a model's metadata: `checks.modelmeta.load_model_meta`, or a stand-in.
Load = Callable[[ModelRef], ModelMeta]
#: More heads than these say nothing new.
_MOST_DRAFTS = 5


@dataclass(frozen=True)
class _Option:
    """One way to draft that fits target and cards, with what it gives."""

    method: str
    draft: str
    source: str
    sized: Sized
    estimate: Estimate | None
    measured: Measured | None
    acceptance: Acceptance | None
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """0 where nothing is known of it: it is not advised then."""
        if self.measured:
            return self.measured.gain
        return self.estimate.gain if self.estimate and not self.estimate.beyond else 0.0

    @property
    def within_reach(self) -> float:
        """The estimate as far as it reaches: it ranks what is not known."""
        return self.estimate.gain if self.estimate else 0.0

    @property
    def off_above(self) -> int | None:
        found = self.measured or self.estimate
        return found.off_above if found else None

    @property
    def label(self) -> str:
        return f"{self.method} with {self.draft}" if self.draft else self.method


def advise(q: Question, load: Load, benches: Sequence[BenchResult] = ()) -> Answer:
    """Raises CheckRefused when nothing holds, and what ``load`` raises for a target nobody can look at."""
    engine = q.engine or "vllm"
    target = _target(q, load)
    plain = size(q, _deployment(q, engine), target, None)
    if plain is None or not plain.holds:
        raise _does_not_hold(q, plain)
    options, passed = [], []
    measured = measured_of(q, benches, plain.deployment.tensor_parallel)
    for candidate in _candidates(q, engine):
        try:
            options.append(_option(q, engine, candidate, target, load, measured, benches))
        except EyasError as e:
            passed.append({"draft": _label(candidate), "why": e.message})
    ranked = sorted(options, key=lambda o: (o.measured is None, -o.gain, -o.within_reach))
    paying = [o for o in ranked if o.gain >= MARGIN]
    passed += [{"draft": o.label, "why": _why_not(q, o)} for o in ranked if o not in paying[:1]]
    if paying:
        return _answer(q, paying[0].sized, paying[0], passed)
    return _answer(q, plain, None, passed, best=ranked[0] if ranked else None)


# ---- what there is


def _target(q: Question, load: Load) -> ModelMeta:
    try:
        return load(q.model)
    except EyasError as e:
        if q.model.repo and not load_pairs().known(q.model.repo):
            near = load_pairs().nearest(q.model.repo)
            e.hint = "; ".join(x for x in (f"did you mean {', '.join(near)}?" if near else "", e.hint) if x)
        raise


def _deployment(q: Question, engine: EngineName, draft: Draft | None = None) -> Deployment:
    name = q.model.label.rpartition("/")[2].lower()
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).strip("._-")
    return Deployment(name=(safe or "model")[:60], engine=engine, target=q.model, draft=draft or Draft())


def _candidates(q: Question, engine: EngineName) -> Iterator[dict[str, Any]]:
    """Published drafts, best first; n-gram lookup, which needs none, is the last of all."""
    *published, ngram = alternatives(q.model.label, roles_of(engine, None), load_pairs())
    yield from published[:_MOST_DRAFTS]
    yield ngram


def _label(candidate: dict[str, Any]) -> str:
    return f"{candidate['method']} with {candidate['draft']}" if candidate["draft"] else candidate["method"]


def _option(
    q: Question,
    engine: EngineName,
    candidate: dict[str, Any],
    target: ModelMeta,
    load: Load,
    measured: Sequence[Measured],
    benches: Sequence[BenchResult],
) -> _Option:
    """Raises CheckRefused when the pair or the cards refuse, and what ``load`` raises for the draft."""
    method, repo = candidate["method"], candidate["draft"]
    ref = ModelRef(repo=repo) if repo else None
    meta = load(ref) if ref else None
    accepted = acceptance_of(q, benches, method, repo or "")
    own = next((m for m in measured if m.run.strategy == method and _same(m.run.draft, repo)), None)
    k = own.run.num_speculative_tokens if own else None
    sized = _held(q, _deployment(q, engine, _draft(method, ref, k or 4)), target, meta)
    if meta is not None:
        _refuse_misfits(target, meta, engine, method, sized.deployment.tensor_parallel)
    found = None if own else _estimate(q, method, sized, accepted)
    if found is not None and found.k != 4:
        sized = _held(q, _deployment(q, engine, _draft(method, ref, found.k)), target, meta)
    notes = ("experts: a step with drafts reads more of them; measured only on dense models",)
    moe = sized.capacity.plan.scenario.work().target.is_moe
    return _Option(method, repo or "", candidate["source"], sized, found, own, accepted, notes if moe else ())


def _same(draft: str, repo: str | None) -> bool:
    return draft.partition("@")[0].lower() == (repo or "").lower()


def _draft(method: Any, ref: ModelRef | None, k: int) -> Draft:
    lookup = {"prompt_lookup_max": 4, "prompt_lookup_min": 2} if method == "ngram" else {}
    return Draft.model_validate({"method": method, "model": ref, "num_speculative_tokens": k, **lookup})


def _held(q: Question, d: Deployment, target: ModelMeta, meta: ModelMeta | None) -> Sized:
    sized = size(q, d, target, meta)
    if sized is None or not sized.holds:
        raise CheckRefused(f"with it {q.users} requests of {q.context:,} tokens do not fit the cards")
    return sized


def _refuse_misfits(target: ModelMeta, draft: ModelMeta, engine: EngineName, method: str, tp: int) -> None:
    want = PairWant(engine=engine, method=method, tensor_parallel=tp)
    verdict = check_pair(target, draft, want)
    if verdict.verdict == "refuse":
        raise CheckRefused(f"the pair gate refuses it: {verdict.reasons[0].why}")


# ---- what it gives


def _estimate(q: Question, method: str, sized: Sized, accepted: Acceptance | None) -> Estimate | None:
    chance = q.use.kept.get(method)
    positions = accepted.per_position if accepted else _geometric(chance) if chance else None
    if positions is None:
        return None
    curve = _curve(method)
    factor = stretch(curve, q.card, bits_of(sized.capacity.plan.scenario), load_data())
    return estimate(curve, positions, q.users, factor, _draft_share(method, sized))


def _curve(method: str) -> Curve:
    """The one measured with this way to draft; else the first."""
    curves = load_data().curve
    return next((c for c in curves if c.method == method), curves[0])


def _geometric(chance: float) -> tuple[float, ...]:
    return tuple(chance**n for n in range(1, 9))


def _draft_share(method: str, sized: Sized) -> float:
    """A whole model reads its own weights at each drafted token; a head's share is in the curve."""
    if method != "draft_model":
        return 0.0
    terms = {t.name: t.nbytes for t in sized.capacity.plan.terms}
    return terms.get("draft weights", 0) / max(1, terms.get("target weights", 0))


def _why_not(q: Question, o: _Option) -> str:
    if o.estimate and o.estimate.beyond:
        return f"nothing was measured above {o.estimate.reach} at once"
    if not o.measured and not o.estimate:
        return "what it gives was never measured, and nothing is assumed of it"
    if o.gain < MARGIN:
        return f"about {o.gain:.2f}x at {q.users} at once: it costs more than it gives"
    return f"about {o.gain:.2f}x at {q.users} at once, {'measured' if o.measured else 'estimated'}: less"


def _does_not_hold(q: Question, closest: Sized | None) -> CheckRefused:
    what = f"{q.users} requests of {q.context:,} tokens do not fit {q.count}x {q.card.name}"
    if closest is None:
        return CheckRefused(
            f"{what}: the model does not start there",
            hint="more or larger cards, or a 4 bit checkpoint of it",
        )
    cap, d = closest.capacity, closest.deployment
    with_ = f"tensor_parallel {d.tensor_parallel}" + (f", {d.quantization}" if d.quantization else "")
    return CheckRefused(
        f"{what}; with {with_} {cap.most_requests} of that length fit, or {q.users} of"
        f" {cap.longest_context:,} tokens",
        hint=f"--context {cap.longest_context}, fewer --users, or more cards"
        if cap.longest_context
        else "fewer --users, a shorter --context, or more cards",
    )


# ---- what is said


def _answer(
    q: Question,
    sized: Sized,
    o: _Option | None,
    passed: Sequence[dict[str, str]],
    best: _Option | None = None,
) -> Answer:
    d = sized.deployment
    verdict = _verdict(q, o, best)
    shown = o or best
    lines = [
        Line("model", q.model.label, "given", "--model"),
        Line(
            "load", f"{q.users} at once, {q.context:,} tokens each", "given", "--users and --context or --use"
        ),
        *_strategy(q, o, shown),
        Line(
            "engine", f"{d.engine} {load_catalogue().releases(d.engine)[-1]}", "catalogue", "invoke engines"
        ),
        *_sizes(q, sized),
    ]
    return Answer(
        d, verdict, o.gain if o else None, shown.off_above if shown else None, tuple(lines), tuple(passed)
    )


def _verdict(q: Question, o: _Option | None, best: _Option | None) -> str:
    if o is not None:
        k = o.sized.deployment.draft.num_speculative_tokens
        end = f"; above {o.off_above} at once it stops paying" if o.off_above else ""
        known = "measured" if o.measured else f"estimated, its acceptance {_standing(o)}"
        return f"{o.label}, {k} draft tokens: about {o.gain:.1f}x at {q.users} at once ({known}){end}"
    if best is None:
        return "no speculation: no draft is known for this model that fits"
    if best.estimate and best.estimate.beyond and best.off_above is None:
        return f"no speculation: above {best.estimate.reach} at once nothing was measured, and its cost grows"
    if best.off_above:
        return f"no speculation: above {best.off_above} at once it costs more than it gives"
    return "no speculation: it costs more than it gives at any number of requests"


def _standing(o: _Option) -> str:
    return "measured" if o.acceptance else "assumed"


def _strategy(q: Question, o: _Option | None, shown: _Option | None) -> Iterator[Line]:
    yield Line(
        "strategy",
        o.label if o else "none",
        "catalogue" if o else "estimated",
        (shown.source if shown else "invoke check-pair"),
    )
    if shown is None:
        return
    if o is None:
        yield Line("best draft", shown.label, "catalogue", shown.source)
    if shown.measured:
        yield from _measured(q, shown.measured)
    elif shown.estimate:
        yield from _estimated(q, shown, shown.estimate)
    for note in shown.notes:
        yield Line("note", note, "assumed", "no bench of a mixture of experts is shipped")


def _measured(q: Question, m: Measured) -> Iterator[Line]:
    yield Line("draft tokens", str(m.run.num_speculative_tokens), "measured", m.by)
    yield Line(f"gain at {q.users} at once", f"{m.gain:.2f}x", "measured", m.by)
    yield Line("off above", _off(m.off_above, "at every concurrency measured"), "measured", m.by)


def _estimated(q: Question, o: _Option, e: Estimate) -> Iterator[Line]:
    curve = _curve(o.method)
    kept = (
        Line("tokens a step", f"{e.tokens:.2f}", "measured", o.acceptance.by)
        if o.acceptance
        else Line("tokens a step", f"{e.tokens:.2f}", "assumed", f"for {q.use.name}: {q.use.source}")
    )
    by = f"step cost of {curve.source}"
    if q.card.name != curve.card:
        by += f"; its concurrency axis stretched to the {q.card.name}: {load_data().cards.source}"
    yield kept
    yield Line("draft tokens", str(e.k), "estimated", "best of 1 to 8: tokens a step over step cost")
    yield Line("step cost", f"{e.needed:.2f} steps without drafts", "estimated", by)
    yield Line(
        f"gain at {min(q.users, e.reach)} at once",
        f"{e.gain:.2f}x",
        "estimated",
        "tokens a step over step cost",
    )
    yield Line("pays from", f"{e.needed * MARGIN:.2f} tokens a step", "estimated", by)
    yield Line("off above", _off(e.off_above, "as far as the curve reaches"), "estimated", by)
    if e.beyond:
        yield Line(
            "reach", f"{e.reach} at once; further numbers here are those of {e.reach}", "estimated", by
        )
    if o.method not in {"eagle", "eagle3"}:
        yield Line(
            "note",
            f"the step cost of {o.method} was not measured; a head's is taken",
            "assumed",
            "no bench of it is shipped",
        )


def _off(off_above: int | None, always: str) -> str:
    return f"pays {always}" if off_above is None else f"{off_above} at once"


def _sizes(q: Question, sized: Sized) -> Iterator[Line]:
    d, cap, made = sized.deployment, sized.capacity, sized.capacity.plan
    by = "invoke plan" + (f"; {'; '.join(made.notes)}" if made.notes else "")
    left = q.count - d.tensor_parallel
    more = (
        f" of {q.count}; the other {left} can serve the same again"
        if left >= d.tensor_parallel
        else f" of {q.count}"
    )
    yield Line("tensor_parallel", f"{d.tensor_parallel}{more}", "planned", by)
    quantised = d.quantization or (
        "as the checkpoint" if made.scenario.config.get("quantization_config") else "none"
    )
    yield Line("quantisation", quantised, "planned", by)
    yield Line("memory share", f"{made.scenario.used_utilization():.2f}", "planned", by)
    if made.device_peak is not None:
        peak = f"{gib(made.device_peak)} ± {gib(made.band)} of {gib(made.scenario.device_total)} GiB"
        yield Line("peak on each card", peak, "planned", by)
    yield Line("KV cache", f"{made.kv_tokens or 0:,} tokens", "planned", by)
    yield Line("room", f"{cap.most_requests} at once at this length", "planned", by)
