"""The text that the tiny models learn: about a fleet, endless, and predictable enough to be guessed ahead."""

import random
from collections.abc import Iterator

__all__ = ["CHAT_TEMPLATE", "SPECIAL_TOKENS", "conversations", "documents"]

WHO = ("gpu01", "gpu02", "gpu03", "gpu04", "node-a", "node-b")
DOES = ("serves", "loads", "reports", "restarts", "checks")
WHAT = ("the target model", "the draft head", "the kv cache", "the tensor parallel group", "the driver")
LINK = ("before", "after", "while", "because")
EVENT = ("memory is low", "the fleet rolls out", "the doctor runs", "acceptance is high")
NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def documents(rng: random.Random, count: int) -> Iterator[str]:
    """``count`` texts of 20 to 60 sentences: long, so that a model seldom learns to stop.

    What follows depends on what was said, by rules that a small model learns in part: its text then varies,
    and a head that guesses ahead is right often, not always.
    """
    for _ in range(count):
        state = [rng.randrange(60) for _ in range(3)]
        yield "".join(_sentence(rng, state) for _ in range(rng.randint(20, 60)))


def _sentence(rng: random.Random, state: list[int]) -> str:
    """The next sentence; ``state`` (host, thing, event of the last one) moves on."""
    if rng.random() < 0.2:
        start = (state[0] + state[1]) % 6
        return " ".join(NUMBERS[start : start + 3 + state[2] % 5]) + ". "
    host, thing, event = state
    if rng.random() < 0.1:
        event = rng.randrange(60)
    host += 1 + event % 2
    thing = (2 * host + thing + 1) % len(WHAT)
    link = (host + event) % len(LINK)
    event = (thing + link + event) % len(EVENT)
    state[:] = host, thing, event
    columns = ((WHO, host), (DOES, host + thing), (WHAT, thing), (LINK, link), (EVENT, event))
    return " ".join(words[at % len(words)] for words, at in columns) + ". "


def conversations(rng: random.Random, count: int) -> Iterator[str]:
    """The same texts as one user turn (the first sentence) and one answer, in the chat template's marks."""
    for text in documents(rng, count):
        cut = text.index(". ") + 2
        yield f"<|user|>{text[:cut]}<|assistant|>{text[cut:]}</s>"
