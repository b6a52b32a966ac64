"""What `invoke plan` does: gather, plan, print. Exit 0: fits or tight; 4: does not fit."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from checks.facts import HostFacts
from checks.modelmeta import ModelMeta
from checks.nodes.traffic import Traffic, traffic
from checks.planner.advice import Advice, advise
from checks.planner.calibrate import calibrate
from checks.planner.deployment import Gpus, gpus_of, gpus_of_card, scenario_of
from checks.planner.inverse import Capacity, CardFit, CardLike, cards_that_do, serves
from checks.planner.plan import plan
from checks.planner.report import show_advice, show_capacity, show_cards, show_plan, show_truth
from checks.planner.result import Plan
from checks.planner.scenario import Scenario, load_scenario
from checks.planner.shapes import shape_of
from checks.planner.truth import compare, load_rows
from checks.planner.units import MIB
from inventory.errors import InventoryError, UsageError
from inventory.hardware import card_named, load_cards
from inventory.model import Deployment, ModelRef

__all__ = [
    "Answer",
    "Ask",
    "Load",
    "answer_for",
    "deployment",
    "gpus_from",
    "load_facts",
    "scenario",
    "truth",
]

#: A model's metadata by reference: `checks.modelmeta.load_model_meta`, or a stand-in.
Load = Callable[[ModelRef], ModelMeta]


@dataclass(frozen=True)
class Ask:
    """What is wanted besides the plan. ``log`` is a start's log to calibrate with, ``used`` bytes by NVML."""

    max_len: int | None = None
    auto_len: bool = False
    requests: int | None = None
    context: int | None = None
    cards: bool = False
    log: str = ""
    used: int | None = None

    @classmethod
    def parse(
        cls,
        *,
        max_model_len: str = "",
        concurrency: str = "",
        context: str = "",
        cards: bool = False,
        log: str = "",
        used_mib: str = "",
    ) -> "Ask":
        """From the command line's words. Raises UsageError for what is no number, or half a question."""
        requests, tokens = _number("--concurrency", concurrency), _number("--context", context)
        if (requests is None) != (tokens is None):
            raise UsageError("--concurrency and --context belong together")
        auto = max_model_len == "auto"
        used = _number("--used-mib", used_mib)
        return cls(
            max_len=None if auto else _number("--max-model-len", max_model_len, "a number or auto"),
            auto_len=auto,
            requests=requests,
            context=tokens,
            cards=cards,
            log=_read(log) if log else "",
            used=None if used is None else used * MIB,
        )


def _number(flag: str, word: str, wanted: str = "a number above 0") -> int | None:
    if not word:
        return None
    if not word.isdecimal() or int(word) == 0:
        raise UsageError(f"{flag} is {word!r}, not {wanted}")
    return int(word)


def load_facts(path: str) -> HostFacts:
    """A saved probe. Raises InventoryError when the file can't be read or isn't one."""
    try:
        return HostFacts.load(Path(path))
    except (OSError, UnicodeDecodeError) as e:
        raise InventoryError(f"cannot read the facts {path}: {e}") from e


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        raise InventoryError(f"cannot read the log {path}: {e.strerror}") from e


def gpus_from(*, gpu: str, count: str, facts: HostFacts | None) -> Gpus:
    """The cards to plan for: those a probe found, or a named card. Raises UsageError without either."""
    if facts is not None:
        return gpus_of(facts)
    if not gpu:
        raise UsageError(
            "nothing to plan for", hint='give --host NAME, --facts FILE, or --gpu "RTX 4090" --gpus 2'
        )
    card = card_named(gpu)
    if card is None:
        names = ", ".join(c.name for c in load_cards())
        raise UsageError(f"unknown card {gpu!r}", hint=f"known: {names}")
    return gpus_of_card(card.name, card.memory_mib, _number("--gpus", count) or 1)


@dataclass(frozen=True)
class Answer:
    """A plan with everything that was asked besides: ready to be shown or written as one document."""

    plan: Plan
    advice: tuple[Advice, ...]
    capacity: Capacity | None
    cards: tuple[CardFit, ...] | None
    title: str
    notes: tuple[str, ...]
    #: Of several hosts: what crosses the network between them.
    network: Traffic | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.plan.starts and (self.capacity is None or self.capacity.holds) else 4

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = self.plan.to_json()
        document["notes"] = [*document["notes"], *self.notes]
        document["advice"] = [a.to_json() for a in self.advice]
        if self.network is not None:
            document["network"] = self.network.to_json()
        if self.capacity is not None:
            document["capacity"] = self.capacity.to_json()
        if self.cards is not None:
            document["cards"] = [
                {"card": f.card, "gpus": f.gpus, "kv_tokens": f.plan.kv_tokens} for f in self.cards
            ]
        return document

    def show(self, console: Console) -> None:
        show_plan(self.plan, console, title=self.title, notes=self.notes)
        if self.capacity is not None:
            show_capacity(self.capacity, console)
        show_advice(self.advice, console)
        if self.cards is not None:
            show_cards(self.cards, console)


def answer_for(d: Deployment, gpus: Gpus, ask: Ask, load: Load, *, title: str = "") -> Answer:
    """Plan a deployment on these cards; with what doesn't fit come the changes that would help."""
    target = load(d.target)
    draft = load(d.draft.model) if d.draft.model is not None else None
    crossing = None
    if d.nodes > 1:
        crossing = traffic(
            shape_of(target.config), tp=d.tensor_parallel, pp=d.pipeline_parallel, nodes=d.nodes
        )
    notes = (*gpus.notes, *([crossing.sentence(d.tensor_parallel, d.nodes)] if crossing else ()))
    answer = _answer(scenario_of(d, target, draft, gpus), ask, title=title or d.name, notes=notes)
    return replace(answer, network=crossing)


def deployment(d: Deployment, gpus: Gpus, ask: Ask, load: Load, *, as_json: bool) -> int:
    """Plan one deployment and print it."""
    return _print(answer_for(d, gpus, ask, load), as_json=as_json)


def scenario(path: str, ask: Ask, *, as_json: bool) -> int:
    """Plan one scenario file. With ``as_json`` the document is the answer and the exit code is 0."""
    code = _print(_answer(load_scenario(Path(path)), ask, title="", notes=()), as_json=as_json)
    return 0 if as_json else code


def _print(answer: Answer, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(answer.to_json(), indent=1))
    else:
        answer.show(Console())
    return answer.exit_code


def _answer(s: Scenario, ask: Ask, *, title: str, notes: tuple[str, ...]) -> Answer:
    if ask.max_len or ask.auto_len:
        s = s.with_(max_len=ask.max_len, auto_len=ask.auto_len)
    capacity = None
    if ask.requests and ask.context:
        capacity = serves(s, requests=ask.requests, context=ask.context)
        s = capacity.plan.scenario
    made = plan(s)
    if ask.log or ask.used:
        made = calibrate(made, ask.log, ask.used)
    advice = () if made.verdict == "fits" else tuple(advise(s))
    fits = tuple(cards_that_do(s, _cards(), requests=ask.requests)) if ask.cards else None
    return Answer(made, advice, capacity, fits, title, notes)


def _cards() -> list[CardLike]:
    """The catalogue's cards; bfloat16 comes with compute capability 8.0."""
    return [
        CardLike(c.name, gpus_of_card(c.name, c.memory_mib, 1).total, float(c.compute_capability) >= 8.0)
        for c in load_cards()
    ]


def truth(path: Path, *, as_json: bool) -> int:
    """Every measured start beside its plan; 4 when one is missed by more than promised."""
    rows = [compare(row) for row in load_rows(path)]
    within = all(r.within for r in rows)
    if as_json:
        print(json.dumps({"schema": 1, "rows": [r.to_json() for r in rows], "within": within}, indent=1))
    else:
        show_truth(rows, Console(width=None if Console().is_terminal else 200))
    return 0 if within else 4
