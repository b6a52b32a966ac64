"""Short words shared by the rules: fixes, evidence, sizes, the cards in use."""

from collections.abc import Iterator
from typing import Any

from packaging.version import InvalidVersion, Version

from checks.facts import HostFacts
from checks.outcome import Evidence, Fix
from checks.preconditions.want import Want
from checks.rule import NotApplicable, NotLooked, need

__all__ = ["card_fact", "cards", "do", "gib", "seen", "unsupported", "version"]

UNSUPPORTED = "not supported by this card"


def do(change: str, command: str = "", value: str = "", why: str = "") -> tuple[Fix, ...]:
    return (Fix(change, value=value, command=command, why=why),)


def seen(path: str, text: Any) -> tuple[Evidence, ...]:
    return (Evidence(path, str(text)),)


def gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def version(text: str, path: str) -> Version:
    """A version that orders; NotLooked when the host gives something else."""
    try:
        return Version(text)
    except (InvalidVersion, TypeError) as e:
        raise NotLooked(f"{path}: {text!r} is not a version") from e


def cards(facts: HostFacts, want: Want) -> list[dict[str, Any]]:
    """The cards this deployment will use, lost ones left out. NotApplicable when there are none."""
    found = need(facts, "gpus")
    chosen = (
        found[: want.cards_here] if want.cards is None else [g for g in found if g["index"] in want.cards]
    )
    answering = [g for g in chosen if not g.get("error")]
    if not answering:
        raise NotApplicable("no card answers")
    return answering


def card_fact(card: dict[str, Any], path: str) -> Any:
    """A card's value; None where the card has no such thing. NotLooked for any other reason."""
    node: Any = card
    for part in path.split("."):
        node = node.get(part, {"missing": "not probed"}) if isinstance(node, dict) else None
        if isinstance(node, dict) and set(node) == {"missing"}:
            if node["missing"] == UNSUPPORTED:
                return None
            raise NotLooked(f"gpus.{card['index']}.{path}: {node['missing']}")
    return node


def unsupported(card: dict[str, Any], path: str) -> bool:
    try:
        return card_fact(card, path) is None
    except NotLooked:
        return False


def each(facts: HostFacts, want: Want, path: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """(card, value) for the cards that have it."""
    for card in cards(facts, want):
        value = card_fact(card, path)
        if value is not None:
            yield card, value
